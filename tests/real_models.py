"""Models with real weights for tests, from the cache if they have been fetched."""

from pathlib import Path

import pytest

from lockstep.harness.real_models import model_file


def real_model_or_skip(name: str) -> Path:
    """Return a real model, or skip the test and name the model, because tests download no
    weights."""
    path = model_file(name)
    if path is None:
        pytest.skip(f"nothing was compared on {name}; `lockstep fetch {name}` gets it")
    return path
