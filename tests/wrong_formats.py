"""Weight formats and activations that are wrong in one way that people get wrong.

A fault of a decoder is a change of the bytes before the right decoder sees them, where that can be;
else of its result or of its code book. `FAULTS` says which types a fault applies to.
"""

import types
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.ops.mirror import Mirror
from engine.ops.products import activation_format
from engine.ops.reference import F64
from engine.quants.base import F32, Bytes, WeightFormat
from engine.weights import Weight
from tests.all_types import MATRICES

Blocks = NDArray[Any]  # (n,) of a format's layout
Kind = type[WeightFormat]


def wrong(kind: Kind, unpack: Callable[[Bytes, F32], None]) -> Kind:
    """The format with another decoder, not registered."""
    return type(f"Wrong{kind.__name__}", (kind,), {"unpack": staticmethod(unpack)})


def with_bytes(kind: Kind, change: Callable[[Blocks], None]) -> Kind:
    """`change` works on a copy of the blocks."""

    def unpack(raw: Bytes, out: F32) -> None:
        blocks = raw.copy().view(kind.layout)
        change(blocks)
        kind.unpack(blocks.view(np.uint8), out)

    return wrong(kind, unpack)


def fields(kind: Kind) -> tuple[str, ...]:
    return kind.layout.names or ()


def swapped_nibbles(kind: Kind) -> Kind:
    def change(blocks: Blocks) -> None:
        field = "ql" if "ql" in fields(kind) else "qs"
        blocks[field] = blocks[field] << 4 | blocks[field] >> 4

    return with_bytes(kind, change)


def exchanged_scale_and_minimum(kind: Kind) -> Kind:
    def change(blocks: Blocks) -> None:
        minimum = "m" if "m" in fields(kind) else "dmin"
        blocks["d"], blocks[minimum] = blocks[minimum].copy(), blocks["d"].copy()

    return with_bytes(kind, change)


def changed_entry(kind: Kind) -> Kind:
    """The same kernel, compiled once more with one value of its code book one larger."""
    function = kind.unpack.py_func  # type: ignore[attr-defined]
    names = {"GRID", "VALUES", "DOUBLED"} & set(function.__code__.co_names)
    (name,) = names
    book = function.__globals__[name]
    if isinstance(book, tuple):
        book = (*book[:3], book[3] + 1, *book[4:])
    else:
        values = book.copy().view(np.int8)
        values[3 * book.itemsize] += 1
        book = values.view(book.dtype)
        book.flags.writeable = False
    # not from numba's cache on disk, which knows functions by the place of their source
    changed = types.FunctionType(function.__code__, {**function.__globals__, name: book})
    return wrong(kind, njit(nogil=True)(changed))


def without_sign(kind: Kind) -> Kind:
    """Magnitudes only; the scales of these formats are positive in the models used."""

    def unpack(raw: Bytes, out: F32) -> None:
        kind.unpack(raw, out)
        np.abs(out, out=out)

    return wrong(kind, unpack)


def longer_block(kind: Kind) -> Kind:
    """Each block is taken to be a byte longer than it is."""

    def unpack(raw: Bytes, out: F32) -> None:
        size = kind.layout.itemsize
        blocks = raw.size // size
        at = np.arange(blocks)[:, None] * (size + 1) + np.arange(size)
        kind.unpack(raw[at.reshape(-1) % raw.size], out)

    return wrong(kind, unpack)


def scale_as_bf16(kind: Kind) -> Kind:
    """The 16 bits of the scale, read as the upper half of a float32."""

    def unpack(raw: Bytes, out: F32) -> None:
        blocks = raw.copy().view(kind.layout)
        bits = blocks["d"].copy().view("<u2").astype(np.uint32)
        blocks["d"] = 1
        kind.unpack(blocks.view(np.uint8), out)
        out *= np.repeat((bits << 16).view(np.float32), kind.weights)

    return wrong(kind, unpack)


def shifted_high_bits(kind: Kind) -> Kind:
    def change(blocks: Blocks) -> None:
        field = "hmask" if "hmask" in fields(kind) else "qh"
        high = np.ascontiguousarray(blocks[field]).view(np.uint8)
        high = high << 1 | high >> 7
        blocks[field] = high.view(blocks[field].dtype).reshape(blocks[field].shape)

    return with_bytes(kind, change)


def has(*names: str) -> Callable[[Kind], bool]:
    return lambda kind: bool(set(names) & set(fields(kind)))


NIBBLES = {
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
    "MXFP4", "NVFP4", "Q1_0", "Q2_0", "TQ2_0",
}  # fmt: skip
BOOKS = {
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "MXFP4", "NVFP4",
}  # fmt: skip
MINIMA = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"}
SIGNS = {kind.name for kind in MATRICES} - MINIMA

Fault = tuple[Callable[[Kind], Kind], Callable[[Kind], bool]]  # what it does, to which formats
FAULTS: dict[str, Fault] = {
    "nibbles swapped": (swapped_nibbles, lambda kind: kind.name in NIBBLES),
    "scale and minimum exchanged": (exchanged_scale_and_minimum, lambda k: k.name in MINIMA),
    "one code-book entry changed": (changed_entry, lambda kind: kind.name in BOOKS),
    "sign bit ignored": (without_sign, lambda kind: kind.name in SIGNS),
    "block size off by one": (longer_block, lambda kind: kind.layout.itemsize > 4),
    "scale read as bf16": (scale_as_bf16, lambda k: "d" in fields(k) and k.layout["d"] == "<f2"),
    "high bits shifted by one": (shifted_high_bits, has("qh", "hmask")),
}
CASES = [
    (kind.name, fault)
    for kind in MATRICES
    for fault, (_, applies) in FAULTS.items()
    if applies(kind)
]


@cache
def wrong_format(type_name: str, fault: str) -> Kind:
    make, applies = FAULTS[fault]
    kind = WeightFormat.named(type_name)
    assert applies(kind)
    return make(kind)


# --- activations ------------------------------------------------------------------------------


class Truncating(Mirror):
    """Cuts activations off towards zero where ggml rounds them."""

    def activations(self, x: F32, weight: Weight) -> F64:
        right = super().activations(x, weight)
        step = np.abs(steps(x, weight))
        return np.where(np.abs(right) > np.abs(x), right - np.sign(right) * step, right)


def steps(x: F32, weight: Weight) -> F64:
    """How far apart the values are to which each activation could be rounded."""
    kind = activation_format(weight.format)
    if kind.layout.names is None:
        digits = {"F32": 24, "F16": 11, "BF16": 8}[kind.name]
        return np.ldexp(1.0, np.frexp(x.astype(np.float64))[1] - digits)
    d = kind.quantise(x)["d"].astype(np.float64)
    return np.repeat(d, kind.block, axis=-1)


class Mismatched(Mirror):
    """Quantises with 1/128 of the largest value and decodes with 1/127."""

    def activations(self, x: F32, weight: Weight) -> F64:
        step = steps(x, weight)
        with np.errstate(invalid="ignore"):  # a block of zeros
            whole = np.rint(x / (step * (127 / 128)))
        return np.where(step == 0, 0, np.clip(whole, -128, 127) * step)


ActivationFault = tuple[type[Mirror], Callable[[Kind], bool]]
ACTIVATION_FAULTS: dict[str, ActivationFault] = {
    "activations truncated instead of rounded": (Truncating, lambda k: k.vec_dot_type != "F32"),
    "quantised with 1/128 and decoded with 1/127": (
        Mismatched,
        lambda kind: kind.vec_dot_type.startswith("Q"),
    ),
}
ACTIVATION_CASES = [
    (kind.name, fault)
    for kind in MATRICES
    for fault, (_, applies) in ACTIVATION_FAULTS.items()
    if applies(kind)
]
