"""Q4_0: 32 weights in 18 bytes; weight = d * (nibble - 8)."""

import numpy as np
from numpy.typing import NDArray

from engine.quants.base import F32, WeightFormat


class Q4_0(WeightFormat, name="Q4_0"):
    type_id = 2
    weights = 32
    layout = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
    vec_dot_type = "Q8_0"

    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        d = blocks["d"].astype(np.float32)[:, None]
        # byte i holds weight i (low nibble) and weight i + 16 (high nibble)
        nibbles = np.hstack([blocks["qs"] & 0x0F, blocks["qs"] >> 4])
        return d * (nibbles.astype(np.float32) - 8)
