"""Models with real weights for tests: from the cache, if somebody fetched them."""

from pathlib import Path

import pytest

from lockstep.harness.real_models import model_file


def real_model_or_skip(name: str) -> Path:
    """Provide a real model, or skip by its name, as tests download no weights."""
    path = model_file(name)
    if path is None:
        pytest.skip(f"{name} was not compared on; `lockstep fetch {name}` gets it")
    return path
