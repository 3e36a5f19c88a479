"""Random weights from a counter-based generator's raw integers: the same bytes with any numpy."""

import zlib
from collections.abc import Iterator

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from engine.errors import Unsupported
from engine.ggml_types import type_by_name

CHUNK = 1 << 20  # weights drawn at a time


def stream(seed: int, name: str) -> Philox:
    """An independent stream for each tensor, so that one more tensor changes no other."""
    return Philox(key=(seed << 32) + zlib.crc32(name.encode()))


def integers(bits: Philox, n: int, below: int) -> NDArray[np.int64]:
    """n integers in 0..below-1; the bias of the remainder (below / 2^32) does not matter here."""
    return (bits.random_raw(n) >> np.uint64(32)).astype(np.int64) % below


def uniform(bits: Philox, n: int, sigma: float) -> NDArray[np.float32]:
    """n floats with standard deviation sigma, evenly spread: bounded, so nothing overflows."""
    grid = (bits.random_raw(n) >> np.uint64(40)).astype(np.float32)  # 24 bits: exact
    unit = grid * np.float32(2.0**-23) - np.float32(1)
    return unit * np.float32(sigma * 3**0.5)


def around_one(bits: Philox, n: int) -> NDArray[np.float32]:
    """Weights of a norm."""
    return np.float32(1) + uniform(bits, n, 0.1)


def tensor_bytes(bits: Philox, type_name: str, n: int, sigma: float) -> Iterator[bytes]:
    """n weights of the type with standard deviation near sigma, in chunks of whole blocks."""
    make = MAKERS.get(type_name)
    if make is None:
        known = ", ".join(sorted(MAKERS))
        raise Unsupported(f"synth cannot make weights of type {type_name!r} (known: {known})")
    block = type_by_name(type_name).block
    for start in range(0, n // block, CHUNK // block):
        yield make(bits, min(CHUNK // block, n // block - start), sigma)


def f32(bits: Philox, n: int, sigma: float) -> bytes:
    return uniform(bits, n, sigma).astype("<f4").tobytes()


def f16(bits: Philox, n: int, sigma: float) -> bytes:
    return uniform(bits, n, sigma).astype("<f2").tobytes()


def bf16(bits: Philox, n: int, sigma: float) -> bytes:
    upper = uniform(bits, n, sigma).view(np.uint32) >> 16  # truncated: any value will do
    return upper.astype("<u2").tobytes()


def scales(bits: Philox, n: int, largest: float) -> NDArray[np.float16]:
    """Scales between half of `largest` and all of it."""
    grid = (bits.random_raw(n) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return ((grid + 1) * np.float32(largest / 2)).astype("<f2")


def q8_0(bits: Philox, n: int, sigma: float) -> bytes:
    blocks = np.zeros(n, np.dtype([("d", "<f2"), ("qs", "i1", 32)]))
    blocks["d"] = scales(bits, n, sigma / 55)  # 127 / sqrt(3) * 0.75
    blocks["qs"] = (integers(bits, n * 32, 255) - 127).reshape(n, 32)
    return blocks.tobytes()


def q4_0(bits: Philox, n: int, sigma: float) -> bytes:
    blocks = np.zeros(n, np.dtype([("d", "<f2"), ("qs", "u1", 16)]))
    blocks["d"] = scales(bits, n, sigma / 3.5)  # sqrt(21.5) * 0.75
    blocks["qs"] = integers(bits, n * 16, 256).reshape(n, 16)
    return blocks.tobytes()


MAKERS = {"F32": f32, "F16": f16, "BF16": bf16, "Q8_0": q8_0, "Q4_0": q4_0}
