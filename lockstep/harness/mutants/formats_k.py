"""Weights of formats with 256 in a block read wrongly: scales and minima of groups, high bits."""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.changed import Blocks, WrongFormat


def turned(bytes_: NDArray[np.uint8], by: int) -> NDArray[np.uint8]:
    return (bytes_ << by | bytes_ >> (8 - by)).astype(np.uint8)


def group_scales(blocks: Blocks) -> F32:
    """Of Q4_K, d times the six bits of each group: (blocks, 8)"""
    s = blocks["scales"]
    later = (s[:, 8:] & 15) | (s[:, :4] >> 6) << 4
    sixes = np.concatenate([s[:, :4] & 63, later], axis=1).astype(np.float32)
    found: F32 = blocks["d"].astype(np.float32)[:, None] * sixes
    return found


class Q2_KExchanged(WrongFormat, name="mutant:q2-k-scales-and-minima"):
    kind = "Q2_K"
    mistake = "Q2_K: nibbles of scales and minima are exchanged"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales"] = turned(blocks["scales"], 4)


class Q2_KAdded(WrongFormat, name="mutant:q2-k-minima-added"):
    kind = "Q2_K"
    mistake = "Q2_K: minima are added"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["dmin"] = -blocks["dmin"]


class Q2_KLanes(WrongFormat, name="mutant:q2-k-scales-on-wrong-lanes"):
    kind = "Q2_K"
    mistake = "Q2_K: the scales of two neighbouring groups are exchanged"
    effect = "text is worse"
    source = "aprender #1924"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales"] = blocks["scales"].reshape(-1, 8, 2)[..., ::-1].reshape(-1, 16)


class Q2_KOrder(WrongFormat, name="mutant:q2-k-pairs-of-bits-reversed"):
    kind = "Q2_K"
    mistake = "Q2_K: pairs of bits are read from the top of a byte"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        q = blocks["qs"]
        blocks["qs"] = q << 6 | (q & 12) << 2 | (q >> 2 & 12) | q >> 6


class Q3_KFourBits(WrongFormat, name="mutant:q3-k-scales-of-four-bits"):
    kind = "Q3_K"
    mistake = "Q3_K: scales of six bits are read as four"
    effect = "noise from the first token on"
    source = "aprender #2115"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales"][:, 8:] = 0


class Q3_KInverted(WrongFormat, name="mutant:q3-k-high-bits-inverted"):
    kind = "Q3_K"
    mistake = "Q3_K: the high bit says when 4 is subtracted, not when it is not"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["hmask"] ^= 0xFF


class Q3_KShifted(WrongFormat, name="mutant:q3-k-high-bits-of-next-group"):
    kind = "Q3_K"
    mistake = "Q3_K: each group has the high bits of the next"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["hmask"] = turned(blocks["hmask"], 7)


class Q3_KUnsigned(WrongFormat, name="mutant:q3-k-scales-order"):
    kind = "Q3_K"
    mistake = "Q3_K: high bits of scales are taken in the order of bytes"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales"][:, 8:] = blocks["scales"][:, :7:-1]


class Q4_KFirst(WrongFormat, name="mutant:q4-k-scale-of-first-group"):
    kind = "Q4_K"
    mistake = "Q4_K: only the first group has a scale of its own; the others have the first one's"
    effect = "text is worse"
    source = "aprender #2141"

    @staticmethod
    def before(blocks: Blocks) -> None:
        first = blocks["scales"][:, :1] & 63
        blocks["scales"][:, :4] = blocks["scales"][:, :4] & 0xC0 | first
        blocks["scales"][:, :4] = blocks["scales"][:, :4] & 0x3F | (first >> 4 << 6)
        blocks["scales"][:, 8:] = blocks["scales"][:, 8:] & 0xF0 | (first & 15)


class Q4_KTop(WrongFormat, name="mutant:q4-k-high-bits-of-scales"):
    kind = "Q4_K"
    mistake = "Q4_K: the upper two bits of the last four scales and minima are lost"
    effect = "text is worse"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales"][:, :8] &= 63


class Q4_KExchanged(WrongFormat, name="mutant:q4-k-scales-and-minima"):
    kind = "Q4_K"
    mistake = "Q4_K: scales and minima of groups are exchanged"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        s = blocks["scales"].copy()
        blocks["scales"] = np.concatenate([s[:, 4:8], s[:, :4], turned(s[:, 8:], 4)], axis=1)


class Q4_KAdded(WrongFormat, name="mutant:q4-k-minima-added"):
    kind = "Q4_K"
    mistake = "Q4_K: minima are added"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["dmin"] = -blocks["dmin"]


class Q4_KSwapped(WrongFormat, name="mutant:q4-k-nibbles-swapped"):
    kind = "Q4_K"
    mistake = "Q4_K: high nibbles are read before low ones"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qs"] = turned(blocks["qs"], 4)


class Q4_KSignedBytes(WrongFormat, name="mutant:q4-k-high-nibbles-sign-extended"):
    kind = "Q4_K"
    mistake = "Q4_K: bytes are signed when shifted, so that high nibbles from 8 on are negative"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        pairs, found = out.reshape(len(out), 4, 2, 32), group_scales(blocks).reshape(-1, 4, 2)
        pairs[:, :, 1] -= 16 * found[:, :, 1:] * (blocks["qs"].reshape(-1, 4, 32) >= 128)


class Q4_KSignedScales(WrongFormat, name="mutant:q4-k-scales-sign-extended"):
    kind = "Q4_K"
    mistake = "Q4_K: the upper two bits of the last four scales are those of a signed byte"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        lost = 64 * blocks["d"].astype(np.float32)[:, None] * (blocks["scales"][:, :4] >= 128)
        nibbles = blocks["qs"].reshape(-1, 4, 32)[:, 2:]
        q = np.stack([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 4, 32)
        out.reshape(len(out), 8, 32)[:, 4:] -= lost[:, :, None] * q


class Q5_KNoFifth(WrongFormat, name="mutant:q5-k-fifth-bit-missing"):
    kind = "Q5_K"
    mistake = "Q5_K: fifth bits are not read"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qh"] = 0


class Q5_KShifted(WrongFormat, name="mutant:q5-k-fifth-bits-of-next-group"):
    kind = "Q5_K"
    mistake = "Q5_K: each group has the fifth bits of the next"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["qh"] = turned(blocks["qh"], 7)


class Q5_KNoMinimum(WrongFormat, name="mutant:q5-k-minima-missing"):
    kind = "Q5_K"
    mistake = "Q5_K: minima are not subtracted"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["dmin"] = 0


class Q6_KOffset(WrongFormat, name="mutant:q6-k-offset"):
    kind = "Q6_K"
    mistake = "Q6_K: 31 is subtracted, not 32"
    effect = "text is worse"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        groups = out.reshape(len(out), 16, 16)
        groups += (blocks["d"].astype(np.float32)[:, None] * blocks["scales"])[..., None]


class Q6_KUnsigned(WrongFormat, name="mutant:q6-k-scales-unsigned"):
    kind = "Q6_K"
    mistake = "Q6_K: scales are read as unsigned bytes"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        groups, signed = out.reshape(len(out), 16, 16), blocks["scales"].astype(np.float32)
        unsigned = blocks["scales"].view(np.uint8).astype(np.float32)
        groups *= (unsigned / np.where(signed == 0, 1, signed))[..., None]


class Q6_KOrder(WrongFormat, name="mutant:q6-k-high-bits-reversed"):
    kind = "Q6_K"
    mistake = "Q6_K: high bits are read from the top of a byte"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        q = blocks["qh"]
        blocks["qh"] = q << 6 | (q & 12) << 2 | (q >> 2 & 12) | q >> 6


class Q6_KHalves(WrongFormat, name="mutant:q6-k-nibbles-swapped"):
    kind = "Q6_K"
    mistake = "Q6_K: high nibbles are read before low ones"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["ql"] = turned(blocks["ql"], 4)


class Q6_KSignedBytes(WrongFormat, name="mutant:q6-k-high-nibbles-sign-extended"):
    kind = "Q6_K"
    mistake = "Q6_K: bytes are signed when shifted, so that high nibbles from 8 on are negative"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        """What is negative has all higher bits set: those of qh change nothing there."""
        low, high = blocks["ql"].reshape(-1, 2, 64) >= 128, blocks["qh"].reshape(-1, 2, 32)
        tops = np.concatenate([high >> 4 & 3, high >> 6], axis=2)
        scales = np.repeat(blocks["scales"].reshape(-1, 2, 8)[:, :, 4:], 16, axis=2)
        step = blocks["d"].astype(np.float32)[:, None, None] * scales
        out.reshape(-1, 2, 128)[:, :, 64:] -= step * low * (16.0 * tops + 16)


class IQ4_XSSigned(WrongFormat, name="mutant:iq4-xs-scales-signed"):
    kind = "IQ4_XS"
    mistake = "IQ4_XS: scales are signed numbers of six bits, without 32 subtracted"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales_h"] ^= 0xAAAA


class IQ4_XSTop(WrongFormat, name="mutant:iq4-xs-high-bits-of-scales"):
    kind = "IQ4_XS"
    mistake = "IQ4_XS: the upper two bits of scales are lost"
    effect = "noise from the first token on"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales_h"] = 0


class IQ4_XSNibbles(WrongFormat, name="mutant:iq4-xs-scales-swapped"):
    kind = "IQ4_XS"
    mistake = "IQ4_XS: the low bits of two neighbouring scales are exchanged"
    effect = "text is worse"

    @staticmethod
    def before(blocks: Blocks) -> None:
        blocks["scales_l"] = turned(blocks["scales_l"], 4)


class IQ4_XSInOrder(WrongFormat, name="mutant:iq4-xs-nibbles-in-order"):
    kind = "IQ4_XS"
    mistake = "IQ4_XS: nibbles are read in linear order"
    effect = "noise from the first token on"

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        groups = out.reshape(len(out), 8, 32)
        low, high = groups[..., :16].copy(), groups[..., 16:].copy()
        groups[..., ::2], groups[..., 1::2] = low, high
