"""Products with few tokens, one row of weights at a time. Each row is decoded once for all tokens.

Sums are in float64, as with decoded weights, but decoded weights are never written to memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba.core.dispatcher import Dispatcher

from lockstep.engine.activations.base import F64
from lockstep.engine.kernels import rows as kernels
from lockstep.engine.kernels.raw_bytes import readable
from lockstep.engine.kernels.threads import each
from lockstep.engine.kernels.unpacking import pointer_to
from lockstep.engine.quants.base import Bytes, WeightFormat, offset_of
from lockstep.engine.weights import Weight

PIECE = 1 << 21  # weights; a piece takes a third of a millisecond, which is worth a thread


@dataclass(frozen=True, eq=False)
class RowPart:
    """Part of a product: the left factors, and the values of each row that they multiply.

    zero: fields of a block that are set to zero. half: a field whose value, a half, is the factor.
    stride: use every stride-th weight. value: True if the part belongs to the product, False if
    only to the magnitudes. times: factor of the magnitudes.
    """

    left: F64  # (tokens, selected weights of a row)
    zero: tuple[str, ...] = ()
    half: str | None = None
    stride: int = 1
    value: bool = True
    times: float = 1.0


def takes(kind: type[WeightFormat]) -> bool:
    """Return True for our own decoders; a deliberately wrong decoder does more than its
    `unpack`."""
    return kind.family.get(kind.name) is kind and isinstance(kind.unpack, Dispatcher)


@cache
def mask_of(name: str, blocks: int, zero: tuple[str, ...]) -> Bytes:
    """Return the mask of the bytes to keep in a row of weights of the named format."""
    kind = WeightFormat.member(name)
    one = np.full(kind.layout.itemsize, 255, np.uint8)
    for field in zero:
        one.view(kind.layout)[field] = 0
    row = np.tile(one, blocks)
    row.flags.writeable = False
    return row


def products(parts: Sequence[RowPart], weight: Weight, *, sizes: bool) -> tuple[F64, F64]:
    """Return the product, and the sums of magnitudes if `sizes` is true: (tokens, rows)."""
    kind, (n, columns), tokens = weight.format, weight.shape, len(parts[0].left)
    value, size = np.zeros((n, tokens)), np.zeros((n if sizes else 0, tokens))
    nothing = np.empty((0, tokens))
    pointer, blocks = pointer_to(kind.unpack), columns // kind.weights
    raw = readable(weight.raw)
    lefts = [np.require(part.left, np.float64, ["C", "W"]) for part in parts]

    def run(rows: slice) -> None:
        some = raw[rows.start * weight.row_bytes : rows.stop * weight.row_bytes]
        for part, left in zip(parts, lefts, strict=True):
            kernels.add_products(
                pointer,
                some,
                mask_of(kind.name, blocks, part.zero),
                -1 if part.half is None else offset_of(kind, part.half),
                part.stride,
                left,
                value[rows] if part.value else nothing,
                size[rows],
                part.times,
            )

    step = max(1, PIECE // columns)
    each(run, [slice(at, min(at + step, n)) for at in range(0, n, step)])
    return value.T, size.T
