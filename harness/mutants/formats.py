"""Engines that read weights wrongly, from one table of wrong readings and their formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.changed import Blocks, WrongFormat
from lockstep.harness.mutants.parts.readings import (
    bf16_as_half,
    clip_lowest_byte,
    double,
    drop_high_bits_of_scales,
    drop_last_bit,
    exchange_halves,
    exchange_neighbouring_scales,
    exchange_q4_k_scales,
    exchange_scale_and_minimum,
    flip_bits,
    flush_small_scales,
    flush_small_weights,
    half_as_bf16,
    lower_one_entry,
    mask_field,
    negate_field,
    offset_q6_k,
    pair_in_order,
    raise_largest,
    read_four_bits,
    reverse_bytes,
    reverse_fifth_bits,
    reverse_high_bytes,
    reverse_pairs,
    scale_as_bf16,
    set_field,
    shift_by_steps,
    sign_extend_q4_0,
    sign_extend_q4_k,
    sign_extend_q6_k,
    sign_extend_scales,
    step_linearly,
    take_scale_of_block_before,
    take_scale_of_first_group,
    turn_field,
    unsign_bytes,
    unsign_scales,
)

NOISE = "noise from the first token on"
WORSE = "text is worse"
UNSEEN = "no effect that a reader sees"
BUILTIN = {"Q4_0": "q4_0", "Q8_0": "q8_0", "BF16": "bf16"}  # models of such a format


@dataclass(frozen=True)
class WrongReading:
    """A wrong way to read blocks.

    kinds: names of formats. words: a description without the format's name. before: changes a copy
    of the blocks. after: changes the decoded weights, (blocks, weights per block). source: a public
    report for each format.
    """

    name: str
    kinds: str
    words: str
    effect: str = NOISE
    before: Callable[[Blocks], None] = lambda blocks: None
    after: Callable[[Blocks, F32], None] = lambda blocks, out: None
    site: str = "embd"
    shows_on: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    first_of_all: bool = False


SIGNED = "bytes are signed when shifted, so that high nibbles from 8 on are negative"
READINGS = (
    WrongReading(
        "nibbles-in-order",
        "Q4_0 IQ4_NL IQ4_XS MXFP4",
        "nibbles are read in linear order",
        after=pair_in_order,
        source={"MXFP4": "imp #567"},
    ),
    WrongReading(
        "nibbles-swapped",
        "Q4_0 Q4_K",
        "high nibbles are read before low ones",
        before=turn_field("qs", 4),
    ),
    WrongReading(
        "nibbles-swapped",
        "Q6_K",
        "high nibbles are read before low ones",
        before=turn_field("ql", 4),
    ),
    WrongReading("high-nibbles-sign-extended", "Q4_0", SIGNED, after=sign_extend_q4_0),
    WrongReading("high-nibbles-sign-extended", "Q4_K", SIGNED, after=sign_extend_q4_k),
    WrongReading("high-nibbles-sign-extended", "Q6_K", SIGNED, after=sign_extend_q6_k),
    WrongReading("offset", "Q4_0", "7 is subtracted from nibbles, not 8", after=shift_by_steps(1)),
    WrongReading("offset", "Q5_1", "16 is subtracted, as in Q5_0", after=shift_by_steps(-16)),
    WrongReading("offset", "Q6_K", "31 is subtracted, not 32", WORSE, after=offset_q6_k),
    WrongReading(
        "signed", "Q4_0", "nibbles are signed numbers of four bits", before=flip_bits("qs", 0x88)
    ),
    WrongReading(
        "scale-bf16", "Q4_0", "the scale is read as BF16", "noise or NaN", after=scale_as_bf16
    ),
    # wrong minima
    WrongReading(
        "minimum-missing", "Q4_1 Q5_1", "the minimum is not added", before=set_field("m", 0)
    ),
    WrongReading(
        "minima-missing", "Q5_K", "minima are not subtracted", before=set_field("dmin", 0)
    ),
    WrongReading("minima-added", "Q2_K Q4_K", "minima are added", before=negate_field("dmin")),
    WrongReading(
        "minimum-subtracted",
        "Q4_1",
        "the minimum is subtracted, as in the K formats",
        before=negate_field("m"),
    ),
    WrongReading(
        "scale-and-minimum",
        "Q4_1",
        "scale and minimum are exchanged",
        before=exchange_scale_and_minimum,
    ),
    WrongReading(
        "scales-and-minima",
        "Q2_K",
        "nibbles of scales and minima are exchanged",
        before=turn_field("scales", 4),
    ),
    WrongReading(
        "scales-and-minima",
        "Q4_K",
        "scales and minima of groups are exchanged",
        before=exchange_q4_k_scales,
    ),
    # wrong bits that are stored apart from the lower bits
    WrongReading(
        "fifth-bit-missing", "Q5_0 Q5_K", "fifth bits are not read", before=set_field("qh", 0)
    ),
    WrongReading(
        "fifth-bits-reversed",
        "Q5_0",
        "fifth bits are read from the top of a byte",
        before=reverse_fifth_bits,
    ),
    WrongReading(
        "fifth-bits-big-endian",
        "Q5_0",
        "the word of fifth bits is read as big-endian",
        before=reverse_bytes,
    ),
    WrongReading(
        "fifth-bits-of-other-half",
        "Q5_1",
        "low nibbles get the fifth bits of high ones",
        before=exchange_halves,
    ),
    WrongReading(
        "fifth-bits-of-next-group",
        "Q5_K",
        "each group has the fifth bits of the next group",
        before=turn_field("qh", 7),
    ),
    WrongReading(
        "high-bits-of-next-group",
        "Q3_K",
        "each group has the high bits of the next group",
        before=turn_field("hmask", 7),
    ),
    WrongReading(
        "high-bits-inverted",
        "Q3_K",
        "the high bit is inverted: 4 is subtracted where it is set",
        before=flip_bits("hmask", 0xFF),
    ),
    WrongReading(
        "pairs-of-bits-reversed",
        "Q2_K",
        "pairs of bits are read from the top of a byte",
        before=reverse_pairs("qs"),
    ),
    WrongReading(
        "high-bits-reversed",
        "Q6_K",
        "high bits are read from the top of a byte",
        before=reverse_pairs("qh"),
    ),
    # wrong scales
    WrongReading(
        "unsigned",
        "Q8_0",
        "bytes are read as unsigned",
        "noise: negative weights are large and positive",
        after=unsign_bytes,
        first_of_all=True,
    ),
    WrongReading(
        "scale-of-block-before",
        "Q8_0",
        "each block has the scale of the previous block",
        WORSE,
        before=take_scale_of_block_before,
    ),
    WrongReading(
        "scale-of-ten-bits",
        "Q8_0",
        "the last bit of the scale is lost",
        f"{UNSEEN}: weights off by up to 0.1 per cent",
        before=drop_last_bit,
    ),
    WrongReading(
        "small-scales-flushed",
        "Q8_0",
        "scales that are subnormal halves are zero",
        "no effect except in a file that has them",
        before=flush_small_scales,
        site="dequant",
    ),  # the model has no such scales
    WrongReading(
        "lowest-byte-clipped",
        "Q8_0",
        "-128 is read as -127",
        UNSEEN,
        before=clip_lowest_byte,
        shows_on="lowest-bytes",
    ),
    WrongReading(
        "scales-on-wrong-lanes",
        "Q2_K",
        "the scales of two neighbouring groups are exchanged",
        WORSE,
        before=exchange_neighbouring_scales,
        source={"Q2_K": "aprender #1924"},
    ),
    WrongReading(
        "scales-of-four-bits",
        "Q3_K",
        "scales of six bits are read as four",
        before=read_four_bits,
        source={"Q3_K": "aprender #2115"},
    ),
    WrongReading(
        "scales-order",
        "Q3_K",
        "high bits of scales are taken in the order of bytes",
        before=reverse_high_bytes,
    ),
    WrongReading(
        "scale-of-first-group",
        "Q4_K",
        "all groups use the scale of the first group",
        WORSE,
        before=take_scale_of_first_group,
        source={"Q4_K": "aprender #2141"},
    ),
    WrongReading(
        "high-bits-of-scales",
        "Q4_K",
        "the upper two bits of the last four scales and minima are lost",
        WORSE,
        before=drop_high_bits_of_scales,
    ),
    WrongReading(
        "scales-sign-extended",
        "Q4_K",
        "the upper two bits of the last four scales are those of a signed byte",
        after=sign_extend_scales,
    ),
    WrongReading(
        "scales-unsigned", "Q6_K", "scales are read as unsigned bytes", after=unsign_scales
    ),
    WrongReading(
        "scales-signed",
        "IQ4_XS",
        "scales are signed numbers of six bits, without 32 subtracted",
        before=flip_bits("scales_h", 0xAAAA),
    ),
    WrongReading(
        "high-bits-of-scales",
        "IQ4_XS",
        "the upper two bits of scales are lost",
        before=set_field("scales_h", 0),
    ),
    WrongReading(
        "scales-swapped",
        "IQ4_XS",
        "the low bits of two neighbouring scales are exchanged",
        WORSE,
        before=turn_field("scales_l", 4),
    ),
    # wrong numbers and code books
    WrongReading("as-bf16", "F16", "halves are read as BF16", "noise or NaN", after=half_as_bf16),
    WrongReading(
        "subnormals-flushed",
        "F16",
        "subnormal numbers are zero",
        UNSEEN,
        after=flush_small_weights,
        site="dequant",
    ),  # the rows that are read have none
    WrongReading("as-f16", "BF16", "numbers are read as halves", after=bf16_as_half),
    WrongReading(
        "linear",
        "IQ4_NL",
        "nibbles are steps of equal size, without the code book",
        WORSE,
        after=step_linearly,
    ),
    WrongReading(
        "entry",
        "IQ4_NL",
        "the entry -83 of the code book is too low by one",
        UNSEEN,
        after=lower_one_entry,
    ),
    WrongReading(
        "doubled", "MXFP4", "values are doubled, but the scale is not halved", after=double
    ),
    WrongReading("largest", "MXFP4", "the largest value is 8, not 6", WORSE, after=raise_largest),
    WrongReading("signs-missing", "MXFP4", "signs are not read", before=mask_field("qs", 0x77)),
)


def register(reading: WrongReading, kind: str) -> type[WrongFormat]:
    """Make the wrong engine for one reading in one format."""
    held = {
        "__module__": __name__,
        "kind": kind,
        "before": staticmethod(reading.before),
        "after": staticmethod(reading.after),
        "mistake": f"{kind}: {reading.words}",
        "effect": reading.effect,
        "site": reading.site,
        "shows_on": reading.shows_on or BUILTIN.get(kind) or f"arch:llama:{kind}",
        "source": reading.source.get(kind, ""),
        "first_of_all": reading.first_of_all,
    }
    name = f"mutant:{kind.lower().replace('_', '-')}-{reading.name}"
    return type(f"{kind} {reading.name}", (WrongFormat,), held, name=name)


WRONG = {cls.name: cls for row in READINGS for cls in (register(row, k) for k in row.kinds.split())}
