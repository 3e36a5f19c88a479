"""The factor by which a file's numbers are multiplied before they are added to the model's."""

import numpy as np

from lockstep.engine.errors import InvalidModel


def float32_factor(value: float, name: str) -> np.float32:
    """Return the factor as float32. Raises InvalidModel if it does not fit."""
    with np.errstate(over="ignore"):
        found = np.float32(value)
    if not np.isfinite(found):
        raise InvalidModel(f"{name} is {value:g}, expected a finite float32")
    return found
