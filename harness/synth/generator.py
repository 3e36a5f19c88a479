"""Random weights of any type, with legal codes and a given standard deviation. The bytes are the
same on every machine."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.random import Philox

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.synth import blocks as synth_blocks
from lockstep.harness.synth.draws import integers, scales, stream, uniform

__all__ = ["MAKERS", "around_one", "integers", "stream", "tensor_bytes", "uniform"]

CHUNK = 1 << 20  # weights drawn at a time
NO_SCALE = ("I8", "I16", "I32", "I64")


def around_one(bits: Philox, n: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return random weights of a norm, which are near one."""
    return np.float32(1) + uniform(bits, n, 0.1)


def tensor_bytes(bits: Philox, type_name: str, n: int, sigma: float) -> Iterator[bytes]:
    """Yield n weights of the type with standard deviation near sigma, in chunks of whole blocks."""
    make = MAKERS.get(type_name)
    if make is None:
        why = ": an integer has no scale" if type_name in NO_SCALE else ""
        known = choices(type_name, sorted(MAKERS))
        raise Unsupported(f"synth cannot make weights of type {type_name!r}{why} {known}")
    block = type_by_name(type_name).block
    per_chunk = CHUNK // block
    for start in range(0, n // block, per_chunk):
        yield make(bits, min(per_chunk, n // block - start), sigma)


def f64(bits: Philox, n: int, sigma: float) -> bytes:
    return uniform(bits, n, sigma).astype("<f8").tobytes()


def f32(bits: Philox, n: int, sigma: float) -> bytes:
    return uniform(bits, n, sigma).astype("<f4").tobytes()


def f16(bits: Philox, n: int, sigma: float) -> bytes:
    return uniform(bits, n, sigma).astype("<f2").tobytes()


def bf16(bits: Philox, n: int, sigma: float) -> bytes:
    upper = uniform(bits, n, sigma).view(np.uint32) >> 16  # truncated, because any value will do
    return upper.astype("<u2").tobytes()


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


MAKERS: dict[str, Callable[[Philox, int, float], bytes]] = {
    "F64": f64,
    "F32": f32,
    "F16": f16,
    "BF16": bf16,
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    **synth_blocks.MAKERS,
}
