"""Which part of a node's tensor an engine shows: of scores and caches the cells in use, of experts
those that are chosen.

llama.cpp has room for 256 cells at least. What is behind the last one in use is masked, and no
other engine has it.
"""

import re
from math import prod
from typing import Any

from numpy.typing import NDArray

OVER_CELLS = re.compile(r"kq(?!v).*")  # names of nodes whose last axis is that of cells
WEIGHTS = "kq_soft_max"  # of cells: what is zero need not be shown
EXPERTS = "ffn_moe_argsort-"  # in order: of their ids the first few are read
# rows of a cache are set; of values that are stored transposed, each number is one
CACHE = re.compile(r"cache_(?P<kind>[kv])_l(?P<layer>\d+)(?: \(reshaped\))? \(view\)")


def part_shown(value: NDArray[Any], shape: tuple[int, ...], name: str) -> NDArray[Any] | None:
    """A view of a node's value in the shape that is shown; None if it cannot be shown so."""
    if CACHE.fullmatch(name) and value.shape[:2] == (1, 1) and len(shape) == 3:
        return cells_of(value, shape)
    if value.size == prod(shape):
        return value.reshape(shape)
    if name.startswith(EXPERTS) and len(shape) == 2 and value.shape[2] == shape[0]:
        return value[0, 0, :, : shape[1]]  # (tokens, used)
    if not OVER_CELLS.fullmatch(name) or value.ndim != 4 or len(shape) != 3:
        return None
    fits = value.shape[:-1] == (1, *shape[:-1]) and shape[-1] <= value.shape[-1]
    return value[0, :, :, : shape[-1]] if fits else None  # (heads, tokens, cells)


def leaves_out(value: NDArray[Any], shape: tuple[int, ...], name: str) -> bool:
    """Whether cells have a weight that are not shown. In a row of NaN every cell is one."""
    part = part_shown(value, shape, name)
    if part is None or part.size == value.size or not name.startswith(WEIGHTS):
        return False
    return bool((value > 0).sum() > (part > 0).sum())


def cells_of(value: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The first cells of a cache: (cells, kv_heads, dim)."""
    width = shape[1] * shape[2]
    if not width or value.size % width or value.size // width < shape[0]:
        return None
    if value.shape[-1] == width:
        return value.reshape(-1, *shape[1:])[: shape[0]]
    if value.shape[-1] != 1:
        return None
    return value.reshape(width, -1).T.reshape(-1, *shape[1:])[: shape[0]]
