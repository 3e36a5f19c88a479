"""Choice of the element to change and of its new value. The seed and the tensors' names determine
both."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.synth.draws import stream

# changes of an F32 weight: negated, doubled, or increased by one rms of its tensor
KINDS = ("sign", "double", "rms")
BIT = "bit"  # change of a weight in blocks: one bit of a code or a scale
TRIES = 100  # number of bits to try, until one changes a weight to another finite value


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One change of a file."""

    tensor: str
    kind: str
    element: int  # number of the first changed weight
    before: float
    after: float
    at: int  # offset in the file
    raw: bytes  # the new bytes

    def __str__(self) -> str:
        return (
            f"{self.kind}: element {self.element} of {self.tensor}, "
            f"{self.before:.6g} is {self.after:.6g}"
        )


def damages(path: Path, seed: int, n: int) -> Iterator[Damage]:
    """Yield n damages in n different tensors, determined by the seed and the tensors' names.
    Tensors with a single element come last."""
    import_members("lockstep.engine.quants")
    with GgufFile.open(path) as file:
        names = [name for name, tensor in file.tensors.items() if tensor.n_bytes]
        raw = stream(seed, "damaged tensors").random_raw(len(names)).tolist()
        place = dict(zip(names, raw, strict=True))
        names.sort(key=lambda name: (prod(file.tensors[name].ne) == 1, place[name]))
        for name in names[:n]:
            yield damage(file, name, stream(seed, f"damage {name}"))


def damage(file: GgufFile, name: str, bits: Philox) -> Damage:
    tensor, raw = file.tensors[name], file.raw(name)
    start = file.data_offset + tensor.offset
    if tensor.type.name != "F32":
        return one_bit(WeightFormat.member(tensor.type.name), name, raw, start, bits)
    values = raw.view(np.float32)
    element, kind = draw_number(bits, values.size), KINDS[draw_number(bits, len(KINDS))]
    before = values[element]
    rms = np.float32(np.sqrt(np.square(values, dtype=np.float64).mean())) or np.float32(1)
    after = {"sign": -before, "double": 2 * before, "rms": before + rms}[kind]
    if after == before:  # the weight is zero
        kind, after = "rms", before + rms
    return Damage(
        tensor=name,
        kind=kind,
        element=element,
        before=float(before),
        after=float(after),
        at=start + 4 * element,
        raw=np.float32(after).tobytes(),
    )


def one_bit(
    kind: type[WeightFormat], name: str, raw: NDArray[np.uint8], start: int, bits: Philox
) -> Damage:
    """Return a damage that flips one bit and changes the weights. Raises EngineError if none of the
    bits that it tries changes a weight."""
    size = kind.layout.itemsize
    for _ in range(TRIES):
        at, bit = draw_number(bits, raw.size), draw_number(bits, 8)
        block = raw[at // size * size :][:size]
        other = block.copy()
        other[at % size] ^= 1 << bit
        before, after = kind.dequantize(block), kind.dequantize(other)
        differ = np.flatnonzero(before != after)
        if differ.size and np.isfinite(after).all():
            return Damage(
                tensor=name,
                kind=BIT,
                element=at // size * kind.weights + int(differ[0]),
                before=float(before[differ[0]]),
                after=float(after[differ[0]]),
                at=start + at,
                raw=bytes([other[at % size]]),
            )
    raise EngineError(f"none of {TRIES} changed bits of {name!r} changes an output")


def draw_number(bits: Philox, n: int) -> int:
    return int(bits.random_raw(1)[0] >> np.uint64(33)) % n


def write_damaged(path: Path, target: Path, change: Damage) -> None:
    raw = bytearray(path.read_bytes())
    raw[change.at : change.at + len(change.raw)] = change.raw
    target.write_bytes(raw)
