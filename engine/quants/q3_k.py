"""Q3_K: 256 weights in 110 bytes, 16 groups of 16; weight = d * (scale - 32) * (q - 4)."""

from typing import Any

import numpy as np

from lockstep.engine.kernels.lanes import as_float, bytes_at, concat, half_at, kernel, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
SIZE = LAYOUT.itemsize
HMASK, QS, SCALES, D = offsets(LAYOUT)


@kernel
def scales_of(raw: Bytes, at: int) -> Any:
    """Return 16 scales of 6 bits from 12 bytes."""
    low, high = bytes_at(raw, at, 8), bytes_at(raw, at + 8, 4)
    # the upper two bits of scale i are bit pair i // 4 of high byte i % 4
    top = concat(concat(high, high >> 2), concat(high >> 4, high >> 6)) & 3
    return concat(low & 15, low >> 4) | top << 4


class Q3_K(WeightFormat, name="Q3_K"):
    type_id = 11
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            start = i * SIZE
            d = half_at(raw, start + D) * as_float(scales_of(raw, start + SCALES) - 32)
            for group in range(16):  # four pairs of groups share 32 bytes, with two bits each
                half, pair, side = group // 8, group // 2, group % 2
                low = bytes_at(raw, start + QS + 32 * half + 16 * side, 16) >> 2 * (pair % 4) & 3
                top = bytes_at(raw, start + HMASK + 16 * side, 16) >> pair & 1
                store(out, 256 * i + 16 * group, d[group] * as_float((low | top << 2) - 4))
