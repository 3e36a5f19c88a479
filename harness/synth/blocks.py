"""Blocks of the quantised types: random bytes, with scales that give the weights their size.

Only the scales decide if a model stays finite. All other bits are drawn uniformly, so that every
code, sign and sub-scale occurs. Codes that no quantiser writes are not drawn.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.synth.draws import between, integers, octets, scales

Maker = Callable[[Philox, int, float], bytes]

# standard deviation of the weights of random blocks, relative to the largest scale; measured with
# ggml's decoders on a million weights
SPREAD = {
    "Q1_0": 0.766, "Q2_0": 0.856, "Q4_1": 3.84, "Q5_0": 7.05, "Q5_1": 7.74,
    "Q2_K": 10.8, "Q3_K": 33.2, "Q4_K": 203, "Q5_K": 415, "Q6_K": 1043,
    "IQ1_S": 5.50, "IQ2_XXS": 40.7, "IQ2_XS": 42.5, "IQ2_S": 43.0,
    "IQ3_XXS": 109, "IQ3_S": 107, "IQ4_NL": 51.2, "IQ4_XS": 955,
}  # fmt: skip
# the same for types that are made in other ways
TERNARY, IQ1_M, MXFP4, NVFP4 = 0.62, 5.48, 5.85, 4.28
# ratio of `m` or `dmin` to d that gives weights with mean zero
MINIMA = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def draw_weights(name: str, bits: Philox, n: int) -> NDArray[Any]:
    layout = WeightFormat.member(name).layout
    return octets(bits, n * layout.itemsize).view(layout)


def scale_blocks(name: str, bits: Philox, n: int, sigma: float) -> bytes:
    """Draw blocks with a half-precision scale `d`, and for some types a scale for minima."""
    blocks = draw_weights(name, bits, n)
    largest = sigma / SPREAD[name]
    blocks["d"] = scales(bits, n, largest)
    if name in MINIMA:
        field = "m" if name.endswith("_1") else "dmin"
        blocks[field] = scales(bits, n, largest) * np.float16(MINIMA[name])
    return blocks.tobytes()


def ternary(name: str, bits: Philox, n: int, sigma: float) -> bytes:
    """Draw blocks of TQ1_0 or TQ2_0, with only the codes of -1, 0 and 1."""
    blocks = draw_weights(name, bits, n)
    blocks["d"] = scales(bits, n, sigma / TERNARY)
    if name == "TQ2_0":
        digits = integers(bits, n * 256, 3).reshape(n, 64, 4)
        blocks["qs"] = (digits << np.array([0, 2, 4, 6])).sum(axis=-1)
    else:  # five ternary digits as a fraction of 256, or four digits and a zero
        for field, below, shift in (("qs", 243, 1), ("qh", 81, 3)):
            shape = blocks[field].shape
            value = integers(bits, math.prod(shape), below).reshape(shape) * shift
            blocks[field] = (value * 256 + 242) // 243
    return blocks.tobytes()


def iq1_m(bits: Philox, n: int, sigma: float) -> bytes:
    """Draw blocks of IQ1_M. The four nibbles of the scale are stored in the upper bits of four
    16-bit words of sub-scales."""
    blocks = draw_weights("IQ1_M", bits, n)
    d = scales(bits, n, sigma / IQ1_M).view("<u2")
    nibbles = (d[:, None] >> np.array([0, 4, 8, 12], np.uint16)) & 15
    blocks["scales"] = (blocks["scales"] & 0x0FFF) | (nibbles << 12)
    return blocks.tobytes()


def mxfp4(bits: Philox, n: int, sigma: float) -> bytes:
    """Draw blocks of MXFP4. Each scale is one of two neighbouring powers of two. The proportion of
    the two gives the right standard deviation."""
    blocks = draw_weights("MXFP4", bits, n)
    mantissa, exponent = math.frexp(sigma / MXFP4)  # mantissa: from 0.5 to 1
    upper = ((2 * mantissa) ** 2 - 1) / 3
    blocks["e"] = 127 + exponent + (integers(bits, n, 1 << 16) < upper * (1 << 16))
    return blocks.tobytes()


def nvfp4(bits: Philox, n: int, sigma: float) -> bytes:
    """Draw blocks of NVFP4, each with four 8-bit float scales, rounded to the nearest value."""
    blocks = draw_weights("NVFP4", bits, n)
    wanted = between(bits, 4 * n, sigma / NVFP4)
    middles = (UE4M3[1:] + UE4M3[:-1]) / 2
    blocks["d"] = np.searchsorted(middles, wanted).reshape(n, 4)
    return blocks.tobytes()


def ue4m3(code: int) -> float:
    """Return the value of a UE4M3 code: four bits of exponent, three of mantissa, no sign. ggml
    halves it (ggml-impl.h)."""
    exponent, mantissa = code >> 3, code & 7
    if exponent == 0:
        return math.ldexp(mantissa, -10)
    return math.ldexp(8 + mantissa, exponent - 11)


UE4M3 = np.array([ue4m3(code) for code in range(0x7F)], np.float32)  # 0x7F is NaN

MAKERS: dict[str, Maker] = {
    **{name: partial(scale_blocks, name) for name in SPREAD},
    **{name: partial(ternary, name) for name in ("TQ1_0", "TQ2_0")},
    "IQ1_M": iq1_m,
    "MXFP4": mxfp4,
    "NVFP4": nvfp4,
}
