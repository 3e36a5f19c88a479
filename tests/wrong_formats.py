"""Weight formats and activations with one realistic mistake each.

If possible, a fault of a decoder changes the bytes before the right decoder reads them. Otherwise
it changes the result or the code book. Every fault exists for every type, unless an excuse of the
fault applies to the type. `why_not` returns the excuse, and test_wrong_formats.py lists the
excuses.
"""

import types
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel, source_stamp
from lockstep.engine.kernels.unpacking import SHARED_SOURCES
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import activation_format, minimum_of
from lockstep.engine.quants.base import F32, NO_PRODUCT, Bytes, WeightFormat
from lockstep.engine.weights import Weight
from tests.all_types import FORMATS

Blocks = NDArray[Any]  # (n,) blocks of a format's layout
Kind = type[WeightFormat]


def wrong(kind: Kind, unpack: Callable[[Bytes, F32], None]) -> Kind:
    """Return the format with another decoder; it is not registered."""
    return type(f"Wrong{kind.__name__}", (kind,), {"unpack": staticmethod(unpack)})


def with_bytes(kind: Kind, change: Callable[[Blocks], None]) -> Kind:
    """Return a format that changes the bytes before decoding. `change` works on a copy of the
    blocks."""

    def unpack(raw: Bytes, out: F32) -> None:
        blocks = raw.copy().view(kind.layout)
        change(blocks)
        kind.unpack(blocks.view(np.uint8), out)

    return wrong(kind, unpack)


def fields(kind: Kind) -> tuple[str, ...]:
    return kind.layout.names or ()


def swapped_nibbles(kind: Kind) -> Kind:
    def change(blocks: Blocks) -> None:
        field = NIBBLES[kind.name]
        blocks[field] = blocks[field] << 4 | blocks[field] >> 4

    return with_bytes(kind, change)


def exchanged_scale_and_minimum(kind: Kind) -> Kind:
    def change(blocks: Blocks) -> None:
        minimum = minimum_of(kind)
        blocks["d"], blocks[minimum] = blocks[minimum].copy(), blocks["d"].copy()

    return with_bytes(kind, change)


def books_of(kind: Kind) -> set[str]:
    """Return the names of the kernel's code books."""
    function = getattr(kind.unpack, "py_func", kind.unpack)
    return {"GRID", "VALUES", "DOUBLED"} & set(function.__code__.co_names)


def changed_entry(kind: Kind) -> Kind:
    """Return the format with its kernel compiled again, after adding one to a value of its code
    book."""
    function = kind.unpack.py_func  # type: ignore[attr-defined]
    (name,) = books_of(kind)
    book = function.__globals__[name]
    if isinstance(book, tuple):
        book = (*book[:3], book[3] + 1, *book[4:])
    else:
        values = book.copy().view(np.int8)
        values[3 * book.itemsize] += 1
        book = values.view(book.dtype)
        book.flags.writeable = False
    changed = types.FunctionType(function.__code__, {**function.__globals__, name: book})
    # numba's cache on disk identifies functions by the place of their source, and by this name
    changed.__qualname__ = f"{function.__qualname__}_with_another_entry"
    stamp = SHARED_SOURCES + source_stamp(__file__)  # the code books, and their changes
    return wrong(kind, compile_kernel(changed, stamp, nogil=True, error_model="numpy"))


def without_sign(kind: Kind) -> Kind:
    """Return the format with magnitudes of minima, if it has minima, or else with magnitudes of
    weights. The models have positive scales, so a weight's sign is that of its step."""

    def unpack(raw: Bytes, out: F32) -> None:
        kind.unpack(raw, out)
        np.abs(out, out=out)

    def change(blocks: Blocks) -> None:
        blocks["m"] = np.abs(blocks["m"])

    return with_bytes(kind, change) if minimum_of(kind) else wrong(kind, unpack)


def longer_block(kind: Kind) -> Kind:
    """Return the format with blocks that are a byte longer."""

    def unpack(raw: Bytes, out: F32) -> None:
        size = kind.layout.itemsize
        blocks = raw.size // size
        at = np.arange(blocks)[:, None] * (size + 1) + np.arange(size)
        kind.unpack(raw[at.reshape(-1) % raw.size], out)

    return wrong(kind, unpack)


def scale_as_bf16(kind: Kind) -> Kind:
    """Return the format with its 16-bit scale read as the upper half of a float32; minima stay
    right."""

    def unpack(raw: Bytes, out: F32) -> None:
        blocks = raw.copy().view(kind.layout)
        bits = scale_of(blocks).astype(np.uint32)
        minima = np.empty_like(out)
        set_scale(blocks, 0)
        kind.unpack(blocks.view(np.uint8), minima)
        set_scale(blocks, ONE)
        kind.unpack(blocks.view(np.uint8), out)
        with np.errstate(over="ignore", invalid="ignore"):
            out -= minima
            out *= np.repeat((bits << 16).view(np.float32), kind.weights)
            out += minima

    return wrong(kind, unpack)


ONE = 0x3C00  # bits of 1 in F16
# shifts of the bits of IQ1_M's scale, which are in the top of four words
QUARTERS = np.array([0, 4, 8, 12], np.uint16)


def has_half(kind: Kind) -> bool:
    return kind.name == "IQ1_M" or ("d" in fields(kind) and kind.layout["d"] == "<f2")


def scale_of(blocks: Blocks) -> NDArray[np.uint16]:
    """Return the bits of each block's scale, a half."""
    if "d" in (blocks.dtype.names or ()):
        return blocks["d"].copy().view("<u2")
    bits: NDArray[np.uint16] = (blocks["scales"] >> 12 << QUARTERS).sum(axis=1, dtype=np.uint16)
    return bits


def set_scale(blocks: Blocks, bits: int) -> None:
    if "d" in (blocks.dtype.names or ()):
        blocks["d"] = np.uint16(bits).view(np.float16)
    else:
        blocks["scales"] = blocks["scales"] & 0x0FFF | (np.uint16(bits) >> QUARTERS & 15) << 12


def high_bits_of(kind: Kind) -> str:
    """Return the field with the high bits of codes; "" if there is none."""
    if kind.name == "Q4_K":
        # the high bits of the last four scales and minima are in the top bits of the others
        return "scales"
    if kind.name == "TQ1_0":
        return ""  # its qh contains the last trits
    return next((name for name in ("qh", "hmask", "scales_h") if name in fields(kind)), "")


def shifted_high_bits(kind: Kind) -> Kind:
    def change(blocks: Blocks) -> None:
        field = high_bits_of(kind)
        high = np.ascontiguousarray(blocks[field]).view(np.uint8)
        turned = high << 1 | high >> 7
        if field == "scales":
            turned = high & 63 | (high >> 7 << 6) | (high >> 6 << 7)
            turned[:, 8:] = high[:, 8:]
        blocks[field] = turned.view(blocks[field].dtype).reshape(blocks[field].shape)

    return with_bytes(kind, change)


# --- faults of each type ----------------------------------------------------------------------

# fields whose nibbles are steps, or several smaller steps; in other formats, they are indices or
# scales
NIBBLES = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K"), "qs"),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"), "qs"),
    **dict.fromkeys(("Q1_0", "Q2_0", "Q2_K", "Q3_K", "TQ2_0"), "qs"),
    "Q6_K": "ql",
    "IQ1_M": "qh",
    "IQ2_XS": "scales",
    "IQ2_S": "scales",
    "IQ3_S": "scales",
}
NO_NIBBLES = {
    "Q8_0": "a weight is a whole byte",
    "TQ1_0": "five trits share a byte, by division",
    "IQ1_S": "indices of 8 and 3 bits, scales of 3",
    "IQ2_XXS": "indices of 8 bits, signs of 7, and one scale on top of a word",
    "IQ3_XXS": "indices of 8 bits, signs of 7, and one scale on top of a word",
}

# reason why a fault is impossible, and the formats for which that holds
Excuse = tuple[str, Callable[[Kind], bool]]
NEVER_MULTIPLIED: Excuse = (
    "llama.cpp has no product with it: golden vectors catch its faults",
    lambda kind: kind.vec_dot_type == NO_PRODUCT,
)
ALONE: Excuse = ("a number stands alone, without a block", lambda kind: kind.weights == 1)
DECODER_FAULTS: dict[str, tuple[Callable[[Kind], Kind], tuple[Excuse, ...]]] = {
    "nibbles swapped": (
        swapped_nibbles,
        (ALONE, *((why, lambda kind, n=n: kind.name == n) for n, why in NO_NIBBLES.items())),
    ),
    "scale and minimum exchanged": (
        exchanged_scale_and_minimum,
        (ALONE, ("it has no minimum", lambda kind: not minimum_of(kind))),
    ),
    "one code-book entry changed": (
        changed_entry,
        (ALONE, ("it has no code book", lambda kind: not books_of(kind))),
    ),
    "sign bit ignored": (
        without_sign,
        (("steps have no sign and minima are subtracted", lambda kind: "dmin" in fields(kind)),),
    ),
    "block size off by one": (longer_block, (ALONE,)),
    "scale read as bf16": (
        scale_as_bf16,
        (ALONE, ("its scales are bytes", lambda kind: not has_half(kind))),
    ),
    "high bits shifted by one": (
        shifted_high_bits,
        (ALONE, ("no field holds high bits separately", lambda kind: not high_bits_of(kind))),
    ),
}


@cache
def wrong_format(type_name: str, fault: str) -> Kind:
    kind = WeightFormat.member(type_name)
    assert not why_not(kind, fault)
    return DECODER_FAULTS[fault][0](kind)


# --- the same and others as functions, for vectors and for the fuzzer --------------------------


def of_result(kind: Kind, change: Callable[[F32], F32]) -> Kind:
    def unpack(raw: Bytes, out: F32) -> None:
        kind.unpack(raw, out)
        out[:] = change(out)

    return wrong(kind, unpack)


def with_field(name: str, change: Callable[[Any], Any]) -> Callable[[Kind], Kind]:
    """Return a function that makes a format with a changed field. name: the field; "" for the field
    of minima."""

    def make(kind: Kind) -> Kind:
        field = name or minimum_of(kind)

        def changed(blocks: Blocks) -> None:
            blocks[field] = change(blocks[field])

        return with_bytes(kind, changed)

    return make


def fields_in_reverse(kind: Kind) -> Kind:
    def change(blocks: Blocks) -> None:
        reverse = np.dtype([(n, kind.layout[n]) for n in reversed(fields(kind))])
        read = blocks.copy().view(reverse)
        for name in fields(kind):
            blocks[name] = read[name]

    return with_bytes(kind, change)


def clipped(kind: Kind) -> Kind:
    return with_field(SIGNED[kind.name], lambda x: np.maximum(x, 0))(kind)


SIGNED = {"I8": "x", "Q8_0": "qs", "Q6_K": "scales"}
MISTAKES: dict[str, tuple[Callable[[Kind], Kind], Callable[[Kind], bool]]] = {
    "nibbles swapped": (swapped_nibbles, lambda kind: kind.name in NIBBLES),
    "neighbours exchanged": (
        lambda kind: of_result(kind, lambda x: x.reshape(-1, 2)[:, ::-1].reshape(-1)),
        lambda kind: True,
    ),
    "scale and minimum exchanged": (exchanged_scale_and_minimum, lambda k: bool(minimum_of(k))),
    "minimum the wrong way": (with_field("", lambda m: -m), lambda kind: bool(minimum_of(kind))),
    "scale left out": (with_field("d", np.ones_like), lambda kind: "d" in halves(kind)),
    "scale as bf16": (scale_as_bf16, lambda kind: "d" in halves(kind) and not minimum_of(kind)),
    "subnormal scales flushed": (
        with_field("d", lambda d: np.where(np.abs(d) < 2.0**-14, 0, d)),
        lambda kind: "d" in halves(kind),
    ),
    "high bits shifted": (shifted_high_bits, lambda kind: bool(high_bits_of(kind))),
    "sign ignored": (lambda kind: of_result(kind, np.abs), lambda kind: True),
    "negative bytes clipped": (clipped, lambda kind: kind.name in SIGNED),
    "blocks a byte apart": (longer_block, lambda kind: kind.layout.itemsize > 1),
    "fields in reverse": (fields_in_reverse, lambda kind: len(fields(kind)) > 1),
}


def halves(kind: Kind) -> set[str]:
    return {name for name in fields(kind) if kind.layout[name] == "<f2"}


def mistaken(kinds: Iterable[Kind]) -> list[Any]:
    """Return test parameters: every mistake in every format to which it applies."""
    return [
        pytest.param(kind, make(kind), id=f"{kind.name}-{name}")
        for kind in kinds
        for name, (make, fits) in MISTAKES.items()
        if fits(kind)
    ]


# --- activations ------------------------------------------------------------------------------


class Truncating(Mirror):
    """An activation format that truncates where ggml rounds."""

    def activations(self, x: F32, weight: Weight) -> F64:
        right = super().activations(x, weight)
        step = np.abs(steps(x, weight))
        return np.where(np.abs(right) > np.abs(x), right - np.sign(right) * step, right)


def steps(x: F32, weight: Weight) -> F64:
    """Return the distance between the two values to which each activation may be rounded."""
    kind = activation_format(weight.format)
    if kind.layout.names is None:
        digits = {"F32": 24, "F16": 11, "BF16": 8}[kind.name]
        return np.ldexp(1.0, np.frexp(x.astype(np.float64))[1] - digits)
    d = kind.quantise(x)["d"].astype(np.float64)
    return np.repeat(d, kind.block, axis=-1)


class Mismatched(Mirror):
    """An activation format that quantises with 1/128 of the largest value and decodes with
    1/127."""

    def activations(self, x: F32, weight: Weight) -> F64:
        step = steps(x, weight)
        with np.errstate(invalid="ignore"):  # for a block of zeros
            whole = np.rint(x / (step * (127 / 128)))
        return np.where(step == 0, 0, np.clip(whole, -128, 127) * step)


UNCONVERTED: Excuse = ("activations stay float32", lambda kind: kind.vec_dot_type == "F32")
ACTIVATION_FAULTS: dict[str, tuple[type[Mirror], tuple[Excuse, ...]]] = {
    "activations truncated instead of rounded": (Truncating, (UNCONVERTED,)),
    "quantised with 1/128 and decoded with 1/127": (
        Mismatched,
        (
            UNCONVERTED,
            ("activations are rounded without a scale", lambda k: k.vec_dot_type[0] != "Q"),
        ),
    ),
}


# --- the matrix -------------------------------------------------------------------------------


def why_not(kind: Kind, fault: str) -> str:
    """Return the fault's first excuse in this format; "" if it applies."""
    excuses = (DECODER_FAULTS | ACTIVATION_FAULTS)[fault][1]
    return next((why for why, fits in (NEVER_MULTIPLIED, *excuses) if fits(kind)), "")


def cases_of(faults: Iterable[str]) -> list[tuple[str, str]]:
    return [(kind.name, fault) for kind in FORMATS for fault in faults if not why_not(kind, fault)]


DECODER_CASES = cases_of(DECODER_FAULTS)
ACTIVATION_CASES = cases_of(ACTIVATION_FAULTS)
