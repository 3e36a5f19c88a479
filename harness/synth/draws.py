"""Numbers from a counter-based generator's raw integers: the same with any numpy."""

import threading
import zlib

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

AGAIN = threading.local()  # of each thread a generator, and its state at the beginning


def stream(seed: int, name: str) -> Philox:
    """Return an independent stream for each tensor, so that one more tensor changes no other."""
    return Philox(key=key_of(seed, name))


def key_of(seed: int, name: str) -> int:
    return (seed << 32) + zlib.crc32(name.encode())


def raw(seed: int, name: str, n: int) -> NDArray[np.uint64]:
    """Return the first n numbers of such a stream."""
    found: NDArray[np.uint64] = begin_stream(seed, name).random_raw(n)
    return found


def begin_stream(seed: int, name: str) -> Philox:
    """Return a thread's stream, valid until the thread begins another one. A new generator asks the
    system for randomness that a key makes needless, which takes longer than a thousand numbers. So
    one generator begins again."""
    if not hasattr(AGAIN, "bits"):
        AGAIN.bits = Philox(key=0)
        AGAIN.state = AGAIN.bits.state
    key = key_of(seed, name)
    words = np.array([key & (1 << 64) - 1, key >> 64], np.uint64)
    AGAIN.bits.state = AGAIN.state | {"state": AGAIN.state["state"] | {"key": words}}
    found: Philox = AGAIN.bits
    return found


def integers(bits: Philox, n: int, below: int) -> NDArray[np.int64]:
    """Return n integers in 0..below-1; the bias of the remainder (below / 2^32) does not matter
    here."""
    return (bits.random_raw(n) >> np.uint64(32)).astype(np.int64) % below


def octets(bits: Philox, n: int) -> NDArray[np.uint8]:
    """Return n bytes, four from each draw."""
    words = (bits.random_raw(-(-n // 4)) >> np.uint64(32)).astype("<u4")
    return words.view(np.uint8)[:n].copy()


def uniform(bits: Philox, n: int, sigma: float) -> NDArray[np.float32]:
    """Return n floats with standard deviation sigma, evenly spread: bounded, so nothing
    overflows."""
    grid = (bits.random_raw(n) >> np.uint64(40)).astype(np.float32)  # 24 bits: exact
    unit = grid * np.float32(2.0**-23) - np.float32(1)
    return unit * np.float32(sigma * 3**0.5)


def scales(bits: Philox, n: int, largest: float) -> NDArray[np.float16]:
    """Return scales between half of `largest` and all of it."""
    return between(bits, n, largest).astype("<f2")


def between(bits: Philox, n: int, largest: float) -> NDArray[np.float32]:
    """Return uniform float32 numbers. Their root mean square is 0.764 of the largest."""
    grid = (bits.random_raw(n) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return (grid + 1) * np.float32(largest / 2)
