"""Models with real weights for tests: from the cache, if somebody fetched them."""

from pathlib import Path

import pytest

from lockstep.harness.real_models import model_file


def real_model_or_skip(name: str) -> Path:
    """Skips by name: a test run downloads no weights by itself."""
    path = model_file(name)
    if path is None:
        pytest.skip(f"{name} was not compared on; `lockstep fetch {name}` gets it")
    return path
