"""TQ1_0: 256 weights in 54 bytes; weight = d * (trit - 1), five trits in a byte."""

from typing import Any

import numpy as np

from lockstep.engine.kernels.lanes import as_float, bytes_at, half_at, kernel, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
SIZE = LAYOUT.itemsize
QS, QH, D = offsets(LAYOUT)


@kernel
def store_trits(out: F32, to: int, d: Any, q: Any, count: int, step: int) -> None:
    """Store the trits of a byte, read as a fraction of 256: each tripling moves the next trit above
    the byte.
    """
    for n in range(count):
        tripled = q * 3
        store(out, to + step * n, d * as_float((tripled >> 8) - 1))
        q = tripled & 255


class TQ1_0(WeightFormat, name="TQ1_0"):
    type_id = 34
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            start = i * SIZE
            d = half_at(raw, start + D)
            # the first trits of 32 bytes, then their second trits, and so on; then of 16 bytes;
            # then of the last 4
            store_trits(out, 256 * i, d, bytes_at(raw, start + QS, 32), 5, 32)
            store_trits(out, 256 * i + 160, d, bytes_at(raw, start + QS + 32, 16), 5, 16)
            store_trits(out, 256 * i + 240, d, bytes_at(raw, start + QH, 4), 4, 4)
