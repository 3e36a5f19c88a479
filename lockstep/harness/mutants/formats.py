"""Weights of simple formats read wrongly: 32 in a block, halves, code books."""

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.changed import Blocks, WrongFormat


def in_order(out: F32) -> None:
    """Weight 2j from a low nibble, 2j + 1 from the high one, where they are half a block apart."""
    low, high = out[:, :16].copy(), out[:, 16:].copy()
    out[:, ::2], out[:, 1::2] = low, high


def nibbles_swapped(blocks: Blocks) -> None:
    blocks["qs"] = blocks["qs"] << 4 | blocks["qs"] >> 4


def scales(blocks: Blocks) -> F32:
    found: F32 = blocks["d"].astype(np.float32)[:, None]
    return found


class Q4_0InOrder(WrongFormat, name="mutant:q4-0-nibbles-in-order"):
    kind, shows_on = "Q4_0", "q4_0"
    mistake = "Q4_0: nibbles are read in linear order"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        in_order(out)


class Q4_0Swapped(WrongFormat, name="mutant:q4-0-nibbles-swapped"):
    kind, shows_on = "Q4_0", "q4_0"
    before = staticmethod(nibbles_swapped)
    mistake = "Q4_0: high nibbles are read before low ones"
    effect = "noise from the first token on"


class Q4_0Offset(WrongFormat, name="mutant:q4-0-offset"):
    kind, shows_on = "Q4_0", "q4_0"
    mistake = "Q4_0: 7 is subtracted from nibbles, not 8"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        out += scales(blocks)


class Q4_0Signed(WrongFormat, name="mutant:q4-0-signed"):
    kind, shows_on = "Q4_0", "q4_0"
    mistake = "Q4_0: nibbles are signed numbers of four bits"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qs"] ^= 0x88


class Q4_0SignedBytes(WrongFormat, name="mutant:q4-0-high-nibbles-sign-extended"):
    kind, shows_on = "Q4_0", "q4_0"
    mistake = "Q4_0: bytes are signed when shifted, so that high nibbles from 8 on are negative"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        out[:, 16:] -= 16 * scales(blocks) * (blocks["qs"] >= 128)


class Q4_0Bf16(WrongFormat, name="mutant:q4-0-scale-bf16"):
    kind, shows_on = "Q4_0", "q4_0"
    mistake = "Q4_0: the scale is read as BF16"
    effect = "noise or NaN"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        bits = blocks["d"].view(np.uint16).astype(np.uint32) << 16
        out *= bits.view(np.float32)[:, None] / scales(blocks)


class Q4_1NoMinimum(WrongFormat, name="mutant:q4-1-minimum-missing"):
    kind = "Q4_1"
    mistake = "Q4_1: the minimum is not added"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["m"] = 0


class Q4_1Exchanged(WrongFormat, name="mutant:q4-1-scale-and-minimum"):
    kind = "Q4_1"
    mistake = "Q4_1: scale and minimum are exchanged"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["d"], blocks["m"] = blocks["m"].copy(), blocks["d"].copy()


class Q4_1Subtracted(WrongFormat, name="mutant:q4-1-minimum-subtracted"):
    kind = "Q4_1"
    mistake = "Q4_1: the minimum is subtracted, as in the K formats"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["m"] = -blocks["m"]


class Q5_0NoFifth(WrongFormat, name="mutant:q5-0-fifth-bit-missing"):
    kind = "Q5_0"
    mistake = "Q5_0: fifth bits are not read"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qh"] = 0


class Q5_0Reversed(WrongFormat, name="mutant:q5-0-fifth-bits-reversed"):
    kind = "Q5_0"
    mistake = "Q5_0: fifth bits are read from the top of a byte"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qh"] = np.packbits(np.unpackbits(blocks["qh"], axis=1, bitorder="little"), axis=1)


class Q5_0BigEndian(WrongFormat, name="mutant:q5-0-fifth-bits-big-endian"):
    kind = "Q5_0"
    mistake = "Q5_0: the word of fifth bits is read with the first byte on top"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qh"] = blocks["qh"][:, ::-1].copy()


class Q5_1HalvesExchanged(WrongFormat, name="mutant:q5-1-fifth-bits-of-other-half"):
    kind = "Q5_1"
    mistake = "Q5_1: low nibbles get the fifth bits of high ones"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qh"] = np.roll(blocks["qh"], 2, axis=1)


class Q5_1Offset(WrongFormat, name="mutant:q5-1-offset"):
    kind = "Q5_1"
    mistake = "Q5_1: 16 is subtracted, as in Q5_0"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        out -= 16 * scales(blocks)


class Q5_1NoMinimum(WrongFormat, name="mutant:q5-1-minimum-missing"):
    kind = "Q5_1"
    mistake = "Q5_1: the minimum is not added"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["m"] = 0


class Q8_0BlockBefore(WrongFormat, name="mutant:q8-0-scale-of-block-before"):
    kind, shows_on = "Q8_0", "q8_0"
    mistake = "Q8_0: each block has the scale of the one before"
    effect = "text is worse"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["d"] = np.roll(blocks["d"], 1)


class Q8_0Lowest(WrongFormat, name="mutant:q8-0-lowest-byte-clipped"):
    kind, shows_on = "Q8_0", "lowest-bytes"
    mistake = "Q8_0: -128 is taken for -127"
    effect = "nothing that a reader sees"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qs"] = np.maximum(blocks["qs"], -127)


class Q8_0Rounded(WrongFormat, name="mutant:q8-0-scale-of-ten-bits"):
    kind, shows_on = "Q8_0", "q8_0"
    mistake = "Q8_0: the last bit of the scale is lost"
    effect = "nothing that a reader sees: weights off by up to 0.1 per cent"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["d"] = (blocks["d"].view(np.uint16) & 0xFFFE).view(np.float16)


class Q8_0SmallScales(WrongFormat, name="mutant:q8-0-small-scales-flushed"):
    kind, shows_on = "Q8_0", "q8_0"
    site = "dequant"  # the model has no such scales
    mistake = "Q8_0: scales that are subnormal halves are zero"
    effect = "nothing, but in a file that has them"

    @staticmethod
    def before(blocks: Blocks) -> None:
        d = blocks["d"]
        d[np.abs(d.astype(np.float32)) < 2.0**-14] = 0


class HalfAsBf16(WrongFormat, name="mutant:f16-as-bf16"):
    kind = "F16"
    mistake = "F16: halves are read as BF16"
    effect = "noise or NaN"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        bits = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16
        out[:] = bits.view(np.float32).reshape(out.shape)


class HalfSubnormal(WrongFormat, name="mutant:f16-subnormals-flushed"):
    kind = "F16"
    site = "dequant"  # the rows that are read have none
    mistake = "F16: subnormal numbers are zero"
    effect = "nothing that a reader sees"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        out[np.abs(out) < 2.0**-14] = 0


class Bf16AsHalf(WrongFormat, name="mutant:bf16-as-f16"):
    kind, shows_on = "BF16", "bf16"
    mistake = "BF16: numbers are read as halves"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        halves = np.ascontiguousarray(blocks).view(np.float16)
        out[:] = halves.astype(np.float32).reshape(out.shape)


class IQ4_NLLinear(WrongFormat, name="mutant:iq4-nl-linear"):
    kind = "IQ4_NL"
    mistake = "IQ4_NL: nibbles are steps of equal size, without the code book"
    effect = "text is worse"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        q = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
        out[:] = scales(blocks) * (q.astype(np.float32) - 8) * 16


class IQ4_NLEntry(WrongFormat, name="mutant:iq4-nl-entry"):
    kind = "IQ4_NL"
    mistake = "IQ4_NL: one entry of the code book is -83 less one"
    effect = "nothing that a reader sees"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        q = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
        out -= (q == 2) * scales(blocks)


class IQ4_NLInOrder(WrongFormat, name="mutant:iq4-nl-nibbles-in-order"):
    kind = "IQ4_NL"
    mistake = "IQ4_NL: nibbles are read in linear order"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        in_order(out)


class MXFP4InOrder(WrongFormat, name="mutant:mxfp4-nibbles-in-order"):
    kind = "MXFP4"
    mistake = "MXFP4: nibbles are read in linear order"
    effect = "noise from the first token on"
    source = "imp #567"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        in_order(out)


class MXFP4Doubled(WrongFormat, name="mutant:mxfp4-doubled"):
    kind = "MXFP4"
    mistake = "MXFP4: values are doubled, and the scale is not halved for it"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        out *= 2


class MXFP4Top(WrongFormat, name="mutant:mxfp4-largest"):
    kind = "MXFP4"
    mistake = "MXFP4: the largest value is 8, not 6"
    effect = "text is worse"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        q = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
        out[(q & 7) == 7] *= np.float32(8 / 6)


class MXFP4NoSign(WrongFormat, name="mutant:mxfp4-signs-missing"):
    kind = "MXFP4"
    mistake = "MXFP4: signs are not read"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qs"] &= 0x77
