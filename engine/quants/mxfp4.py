"""MXFP4: 32 weights in 17 bytes; weight = 2**(e - 127) * E2M1 nibble."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, byte_at, bytes_at, kernel, lookup, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("e", "u1"), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
E, QS = offsets(LAYOUT)

# values of E2M1, doubled so that all are integers; ggml has no -0, and halves the scale instead
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# values of E8M0, halved; 255 is NaN in the standard and 2**127 in ggml
SCALES = np.ldexp(1.0, np.arange(256) - 128).astype(np.float32)


class MXFP4(WeightFormat, name="MXFP4"):
    type_id = 39
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = SCALES[byte_at(raw, i * SIZE + E)]
            q = bytes_at(raw, i * SIZE + QS, 16)
            # byte j holds weight j (low nibble) and weight j + 16 (high nibble)
            store(out, 32 * i, d * as_float(lookup(DOUBLED, q & 15)))
            store(out, 32 * i + 16, d * as_float(lookup(DOUBLED, q >> 4)))
