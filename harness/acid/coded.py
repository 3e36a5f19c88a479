"""Blocks of quantised weights for each format. One part varies, and all other parts are constant.

The input of a part's test changes if an engine decodes this part wrongly, and hardly changes
otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.synth.draws import integers, stream

# field -> mask of varying bits for each byte; a single byte applies to all
Masks = Mapping[str, tuple[int, ...]]
# HALF: for an F16 scale, between one and four times the plain scale
ALL, HALF = (0xFF,), (0xFF, 0x07)


@dataclass(frozen=True)
class VaryingPart:
    """A part of a block whose bytes vary. catches: wrong engines of the catalogue that this part
    reveals."""

    masks: Masks
    catches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Coded:
    """Weights of one format, by field. plain: the value of each field that does not vary: one
    number for all bytes, or one for each byte."""

    plain: Mapping[str, float | tuple[int, ...]]
    parts: Mapping[str, VaryingPart]
    columns: tuple[int, int] = (53, 210)  # the columns of a row that are read
    n_ff: int = field(default=256)


def rows_of(kind: str, part: str, column: int, n_rows: int) -> NDArray[np.uint8]:
    """Return rows with varying values in one part, (n_rows, bytes of a row). They are the same on
    every machine."""
    coded, layout = FORMATS[kind], format_named(kind).layout
    n = n_rows * coded.n_ff // format_named(kind).weights
    blocks = np.zeros(n, layout)
    for name, value in coded.plain.items():
        blocks[name] = value
    raw = blocks.view(np.uint8).reshape(n, layout.itemsize)
    bits = stream(0, f"acid {kind} {part} {column}")
    for name, mask in coded.parts[part].masks.items():
        kept, start = layout.fields[name][:2] if layout.fields else (layout, 0)
        some = raw[:, start : start + kept.itemsize]
        masks = np.resize(np.array(mask, np.uint8), kept.itemsize)
        drawn = integers(bits, some.size, 256).astype(np.uint8).reshape(some.shape)
        some[:] = (some & ~masks) | (drawn & masks)
    return raw.reshape(n_rows, -1)


def decode(kind: str, rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the decoded weights: (rows, weights)."""
    return format_named(kind).dequantize(rows.reshape(-1)).reshape(len(rows), -1).astype(np.float64)


def format_named(kind: str) -> type[WeightFormat]:
    import_members("lockstep.engine.quants")
    return WeightFormat.member(kind)


def small(plain: Mapping[str, float | tuple[int, ...]], **parts: VaryingPart) -> Coded:
    """Return a format with blocks of 32 weights, two blocks in a row."""
    named = {name.replace("_", "-"): part for name, part in parts.items()}
    return Coded(plain, named, (21, 43), 64)


def large(plain: Mapping[str, float | tuple[int, ...]], **parts: VaryingPart) -> Coded:
    named = {name.replace("_", "-"): part for name, part in parts.items()}
    return Coded(plain, named)


# 12 bytes of Q4_K and Q5_K: all scales 20, all minima 0
SIX_BITS = (84,) * 4 + (0,) * 4 + (4,) * 4
SCALES = (0xFF,) * 4 + (0x00,) * 4 + (0x0F,) * 4
MINIMA = (0x00,) * 4 + (0xFF,) * 4 + (0xF0,) * 4

FORMATS: Mapping[str, Coded] = {
    "Q8_0": small(
        {"d": 2.0**-7, "qs": 96},
        bytes=VaryingPart({"qs": ALL}, ("q8-0-unsigned",)),
        scale=VaryingPart({"d": HALF}, ("q8-0-scale-of-block-before",)),
    ),
    "Q4_0": small(
        {"d": 2.0**-3, "qs": 0x33},
        nibbles=VaryingPart(
            {"qs": ALL},
            ("q4-0-nibbles-in-order", "q4-0-nibbles-swapped", "q4-0-offset", "q4-0-signed"),
        ),
        scale=VaryingPart({"d": HALF}),
    ),
    "Q4_1": small(
        {"d": 2.0**-5, "m": 0.0, "qs": 0x99},
        nibbles=VaryingPart({"qs": ALL}),
        scale_and_minimum=VaryingPart(
            {"d": HALF, "m": (0xFF, 0xB7)},
            ("q4-1-minimum-missing", "q4-1-scale-and-minimum", "q4-1-minimum-subtracted"),
        ),
    ),
    "Q5_0": small(
        {"d": 2.0**-4, "qh": 0, "qs": 0x33},
        nibbles=VaryingPart({"qs": ALL}),
        fifth_bits=VaryingPart(
            {"qh": ALL},
            ("q5-0-fifth-bit-missing", "q5-0-fifth-bits-reversed", "q5-0-fifth-bits-big-endian"),
        ),
    ),
    "Q5_1": small(
        {"d": 2.0**-6, "m": 0.0, "qh": 0, "qs": 0x33},
        nibbles=VaryingPart({"qs": ALL}),
        fifth_bits=VaryingPart({"qh": ALL}, ("q5-1-fifth-bits-of-other-half", "q5-1-offset")),
        scale_and_minimum=VaryingPart({"d": HALF, "m": (0xFF, 0xB7)}, ("q5-1-minimum-missing",)),
    ),
    "IQ4_NL": small(
        {"d": 2.0**-7, "qs": 0xBB},
        nibbles=VaryingPart({"qs": ALL}, ("iq4-nl-nibbles-in-order",)),
        code_book=VaryingPart({"d": HALF}, ("iq4-nl-linear",)),
    ),
    "MXFP4": small(
        {"e": 124, "qs": 0x55},
        nibbles=VaryingPart({"qs": ALL}, ("mxfp4-nibbles-in-order", "mxfp4-signs-missing")),
        exponent=VaryingPart({"e": (0x01,)}, ("mxfp4-doubled",)),
    ),
    "Q2_K": large(
        {"d": 2.0**-6, "dmin": 2.0**-6, "scales": 0x0A, "qs": 0xAA},
        pairs_of_bits=VaryingPart({"qs": ALL}, ("q2-k-pairs-of-bits-reversed",)),
        scales=VaryingPart(
            {"scales": (0x0F,)}, ("q2-k-scales-on-wrong-lanes", "q2-k-scales-and-minima")
        ),
        minima=VaryingPart({"scales": (0xF0,)}, ("q2-k-minima-added", "q2-k-scales-and-minima")),
    ),
    "Q3_K": large(
        {"d": 2.0**-7, "hmask": 0xFF, "qs": 0xAA, "scales": (0,) * 8 + (0xFF,) * 4},
        low_bits=VaryingPart({"qs": ALL}),
        high_bits=VaryingPart(
            {"hmask": ALL}, ("q3-k-high-bits-inverted", "q3-k-high-bits-of-next-group")
        ),
        scales=VaryingPart({"scales": ALL}, ("q3-k-scales-of-four-bits", "q3-k-scales-order")),
    ),
    "Q4_K": large(
        {"d": 2.0**-9, "dmin": 2.0**-6, "scales": SIX_BITS, "qs": 0x99},
        nibbles=VaryingPart({"qs": ALL}, ("q4-k-nibbles-swapped",)),
        scales=VaryingPart(
            {"scales": SCALES},
            ("q4-k-scale-of-first-group", "q4-k-scales-and-minima", "q4-k-high-bits-of-scales"),
        ),
        minima=VaryingPart({"scales": MINIMA}, ("q4-k-minima-added", "q4-k-scales-and-minima")),
    ),
    "Q5_K": large(
        {"d": 2.0**-10, "dmin": 2.0**-6, "scales": SIX_BITS, "qh": 0, "qs": 0x99},
        nibbles=VaryingPart({"qs": ALL}),
        fifth_bits=VaryingPart(
            {"qh": ALL}, ("q5-k-fifth-bit-missing", "q5-k-fifth-bits-of-next-group")
        ),
        scales=VaryingPart({"scales": SCALES}),
        minima=VaryingPart({"scales": MINIMA}, ("q5-k-minima-missing",)),
    ),
    "Q6_K": large(
        {"d": 2.0**-11, "scales": 64, "ql": 0xCC, "qh": 0xAA},
        nibbles=VaryingPart({"ql": ALL}, ("q6-k-nibbles-swapped",)),
        high_bits=VaryingPart({"qh": ALL}, ("q6-k-high-bits-reversed",)),
        scales=VaryingPart({"scales": ALL}, ("q6-k-scales-unsigned",)),
    ),
    "IQ4_XS": large(
        {"d": 2.0**-11, "scales_h": 0xFFFF, "scales_l": 0, "qs": 0xBB},
        nibbles=VaryingPart({"qs": ALL}, ("iq4-xs-nibbles-in-order",)),
        scales=VaryingPart(
            {"scales_l": ALL, "scales_h": ALL},
            ("iq4-xs-high-bits-of-scales", "iq4-xs-scales-signed", "iq4-xs-scales-swapped"),
        ),
    ),
}
