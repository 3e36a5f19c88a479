"""NVFP4: 64 weights in 36 bytes, 4 groups of 16; weight = UE4M3 scale * E2M1 nibble."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, byte_at, bytes_at, concat, kernel, lookup, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.mxfp4 import DOUBLED

LAYOUT = np.dtype([("d", "u1", 4), ("qs", "u1", 32)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)


def halved_scales() -> F32:
    """Return the UE4M3 number for each byte, halved because the values of nibbles are doubled.

    ggml ignores the top bit, but 0x7F, which is NaN in the standard, becomes 0, and 0xFF becomes
    240.
    """
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    scales = np.where(exponent == 0, np.ldexp(mantissa, -9), normal)
    return np.where(code == 0x7F, 0, scales / 2).astype(np.float32)


SCALES = halved_scales()


class NVFP4(WeightFormat, name="NVFP4"):
    type_id = 40
    weights = 64
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            for group in range(4):
                d = SCALES[byte_at(raw, i * SIZE + D + group)]
                q = bytes_at(raw, i * SIZE + QS + 8 * group, 8)
                # byte j holds weight j (low nibble) and weight j + 8 (high nibble)
                values = as_float(lookup(DOUBLED, concat(q & 15, q >> 4)))
                store(out, 64 * i + 16 * group, d * values)
