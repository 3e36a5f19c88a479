"""Random numbers, made from the raw integers of a counter-based generator. They are the same with
any version of numpy."""

import threading
import zlib

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

AGAIN = threading.local()  # by thread: a generator, and its initial state


def stream(seed: int, name: str) -> Philox:
    """Return an independent stream for each tensor, so that an additional tensor changes no other
    tensor."""
    return Philox(key=key_of(seed, name))


def key_of(seed: int, name: str) -> int:
    return (seed << 32) + zlib.crc32(name.encode())


def raw(seed: int, name: str, n: int) -> NDArray[np.uint64]:
    """Return the first n numbers of a new stream."""
    found: NDArray[np.uint64] = begin_stream(seed, name).random_raw(n)
    return found


def begin_stream(seed: int, name: str) -> Philox:
    """Return this thread's stream, valid until the thread begins another stream. A new generator
    would ask the system for random numbers that it does not need. This takes longer than drawing a
    thousand numbers. Therefore one generator is reused."""
    if not hasattr(AGAIN, "bits"):
        AGAIN.bits = Philox(key=0)
        AGAIN.state = AGAIN.bits.state
    key = key_of(seed, name)
    words = np.array([key & (1 << 64) - 1, key >> 64], np.uint64)
    AGAIN.bits.state = AGAIN.state | {"state": AGAIN.state["state"] | {"key": words}}
    found: Philox = AGAIN.bits
    return found


def integers(bits: Philox, n: int, below: int) -> NDArray[np.int64]:
    """Return n integers from 0 to below-1. The bias of the remainder (below / 2^32) is negligible
    here."""
    return (bits.random_raw(n) >> np.uint64(32)).astype(np.int64) % below


def octets(bits: Philox, n: int) -> NDArray[np.uint8]:
    """Return n bytes, four from each draw."""
    words = (bits.random_raw(-(-n // 4)) >> np.uint64(32)).astype("<u4")
    return words.view(np.uint8)[:n].copy()


def uniform(bits: Philox, n: int, sigma: float) -> NDArray[np.float32]:
    """Return n floats with standard deviation sigma. They are uniformly distributed, so they are
    bounded and nothing overflows."""
    # 24 bits, which float32 holds exactly
    grid = (bits.random_raw(n) >> np.uint64(40)).astype(np.float32)
    unit = grid * np.float32(2.0**-23) - np.float32(1)
    return unit * np.float32(sigma * 3**0.5)


def scales(bits: Philox, n: int, largest: float) -> NDArray[np.float16]:
    """Return scales between half of `largest` and `largest`."""
    return between(bits, n, largest).astype("<f2")


def between(bits: Philox, n: int, largest: float) -> NDArray[np.float32]:
    """Return uniform float32 numbers whose root mean square is 0.764 times the largest."""
    grid = (bits.random_raw(n) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return (grid + 1) * np.float32(largest / 2)
