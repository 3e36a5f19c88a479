"""Which part of a node's tensor an engine shows: of attention's scores the cells in use.

llama.cpp has room for 256 cells at least. What is behind the last one in use is masked, and no
other engine has it.
"""

import re
from math import prod
from typing import Any

from numpy.typing import NDArray

OVER_CELLS = re.compile(r"kq(?!v).*")  # names of nodes whose last axis is that of cells


def part_shown(value: NDArray[Any], shape: tuple[int, ...], name: str) -> NDArray[Any] | None:
    """A view of a node's value in the shape that is shown; None if it cannot be shown so."""
    if value.size == prod(shape):
        return value.reshape(shape)
    if not OVER_CELLS.fullmatch(name) or value.ndim != 4 or len(shape) != 3:
        return None
    fits = value.shape[:-1] == (1, *shape[:-1]) and shape[-1] <= value.shape[-1]
    return value[0, :, :, : shape[-1]] if fits else None  # (heads, tokens, cells)
