"""Products with few tokens, as integers: rows of weights as stored in the file, times steps.

The results equal those of decoded weights up to the last bits of float64 sums. The products take no
longer than reading the file.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import F64
from lockstep.engine.kernels.integer_rows import BLOCKS, TOGETHER, rows
from lockstep.engine.kernels.raw_bytes import readable
from lockstep.engine.kernels.threads import each
from lockstep.engine.ops.integers import Steps
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.weights import Weight

PIECE = 1 << 21  # weights; a piece takes a third of a millisecond, which is worth a thread
# number of steps whose sums are multiplied with minima and offsets
GROUPS = {"Q8_0": 32, "Q8_1": 32, "Q8_K": 16}
NOTHING = (np.frombuffer(b"", np.uint8),) * (TOGETHER - 1)  # no further matrices


def takes(kind: type[WeightFormat]) -> bool:
    """Return True for our own decoder of a known type; a deliberately wrong decoder must be run."""
    return kind.family.get(kind.name) is kind and kind.name in BLOCKS


def product(left: Steps, sums: F64 | None, weight: Weight) -> F64 | None:
    """Return the product (tokens, rows), or None if integers would give another result. sums: the
    sums stored with the activations."""
    kind = weight.format
    if len(left.columns) or not has_sums_for(kind, sums):
        return None
    x = row_by_row(left)
    if x.min(initial=0) < -127:  # the opposite of -128 is no byte
        return None
    group = GROUPS[kind.vec_dot_type] * (2 if BLOCKS[kind.name].pairs else 1)
    sums_of = x.reshape(len(x), x.shape[1] // group, group).sum(axis=-1, dtype=np.int32)
    dx = np.ascontiguousarray(left.scales[:, : left.tokens].T).astype(np.float32)
    lows = np.empty((len(x), 0), np.float32) if sums is None else sums.astype(np.float32)
    out, n = np.empty((len(x), weight.shape[0])), weight.shape[0]
    args = (readable(weight.raw), *NOTHING), weight.row_bytes, x, dx, sums_of, lows
    kernel, step = rows(kind.name, "float64"), max(1, PIECE // weight.shape[1])

    def run(start: int) -> None:
        kernel(*args, out, start, min(start + step, n))

    each(run, range(0, n, step))
    # with an infinite scale, a decoded zero gives NaN, but a sum gives infinity
    return out if np.isfinite(out).all() else None


def has_sums_for(kind: type[WeightFormat], sums: F64 | None) -> bool:
    """Return True if the sums fit the kind. Small blocks multiply minima by the given sums, which
    must be float32. Large blocks multiply minima by sums of steps, so no other sums may be given.
    """
    block = BLOCKS[kind.name]
    if block.m >= 0:
        return sums is not None and np.array_equal(sums.astype(np.float32), sums, equal_nan=True)
    return sums is None or block.dmin < 0


def row_by_row(left: Steps) -> NDArray[np.int8]:
    """Return the steps row by row: (tokens, columns)."""
    runs, words, _, per = left.steps.shape
    steps = left.steps[:, :, : left.tokens].transpose(2, 0, 1, 3)
    return steps.reshape(left.tokens, runs * words * per).astype(np.int8)
