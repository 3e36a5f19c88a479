"""Blocks with subnormal scales, which only some files contain.

A half-precision reader that takes such scales for zero is right on all other blocks. The decoded
float32 weights are all normal numbers, so no engine may flush them to zero.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import WeightFormat

BLOCKS = 32
HALF = np.dtype("<f2")
LARGEST = 0x3FF  # the largest subnormal number as bits: 6.1e-5


def has_half_scales(kind: str) -> bool:
    layout = WeightFormat.member(kind).layout
    names = layout.names
    return HALF in ({layout[name].base for name in names} if names else {layout})


def with_small_scales(
    kind: str, raw: NDArray[np.uint8], n: int = BLOCKS
) -> NDArray[np.uint8] | None:
    """Return the first n blocks with subnormal scales of all sizes; None for a type without
    half-precision scales."""
    layout = WeightFormat.member(kind).layout
    blocks: NDArray[Any] = raw[: n * layout.itemsize].view(layout).copy()
    names = [name for name in layout.names or () if layout[name].base == HALF]
    parts = [blocks[name] for name in names] if layout.names else [blocks]
    parts = [part for part in parts if part.dtype == HALF and part.size]
    for turn, part in enumerate(parts):
        steps = np.geomspace(1, LARGEST, part.size).astype(np.uint16)
        part[...] = np.roll(steps, turn).view(HALF).reshape(part.shape)
    return blocks.view(np.uint8).reshape(-1) if parts else None
