"""Q2_K: 256 weights in 84 bytes, 16 groups of 16; weight = d * scale * q - dmin * minimum."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, bytes_at, half_at, kernel, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
SIZE = LAYOUT.itemsize
SCALES, QS, D, DMIN = offsets(LAYOUT)


class Q2_K(WeightFormat, name="Q2_K"):
    type_id = 10
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            start = i * SIZE
            scales = bytes_at(raw, start + SCALES, 16)
            d = half_at(raw, start + D) * as_float(scales & 15)
            m = half_at(raw, start + DMIN) * as_float(scales >> 4)
            for group in range(16):  # four pairs of groups share 32 bytes, with two bits each
                half, pair, side = group // 8, group // 2 % 4, group % 2
                q = bytes_at(raw, start + QS + 32 * half + 16 * side, 16) >> 2 * pair & 3
                store(out, 256 * i + 16 * group, d[group] * as_float(q) - m[group])
