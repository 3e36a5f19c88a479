"""Wrong ways to read blocks of weights. Each changes a copy of the bytes, or the decoded
weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.changed import Blocks

# --- parts of blocks --------------------------------------------------------------------------


def turn(values: NDArray[Any], by: int) -> NDArray[Any]:
    """Rotate the bits of each byte by this number of places."""
    return (values << by | values >> (8 - by)).astype(np.uint8)


def turn_field(name: str, by: int) -> Callable[[Blocks], None]:
    def change(blocks: Blocks) -> None:
        blocks[name] = turn(blocks[name], by)

    return change


def set_field(name: str, value: int) -> Callable[[Blocks], None]:
    def change(blocks: Blocks) -> None:
        blocks[name] = value

    return change


def mask_field(name: str, mask: int) -> Callable[[Blocks], None]:
    def change(blocks: Blocks) -> None:
        blocks[name] &= mask

    return change


def flip_bits(name: str, mask: int) -> Callable[[Blocks], None]:
    def change(blocks: Blocks) -> None:
        blocks[name] ^= mask

    return change


def negate_field(name: str) -> Callable[[Blocks], None]:
    def change(blocks: Blocks) -> None:
        blocks[name] = -blocks[name]

    return change


def scales(blocks: Blocks) -> F32:
    found: F32 = blocks["d"].astype(np.float32)[:, None]
    return found


def nibbles(blocks: Blocks) -> NDArray[np.uint8]:
    return np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)


def group_scales(blocks: Blocks) -> F32:
    """Return the scale of each group of Q4_K, which is d times its six-bit number: (blocks, 8)."""
    s = blocks["scales"]
    later = (s[:, 8:] & 15) | (s[:, :4] >> 6) << 4
    found: F32 = scales(blocks) * np.concatenate([s[:, :4] & 63, later], axis=1).astype(np.float32)
    return found


# --- effects of readings ----------------------------------------------------------------------


def pair_in_order(blocks: Blocks, out: F32) -> None:
    """Give weights 2j and 2j + 1 the two values of byte j. Their right places are 16 apart in a
    group of 32."""
    groups = out.reshape(-1, 32)
    low, high = groups[:, :16].copy(), groups[:, 16:].copy()
    groups[:, ::2], groups[:, 1::2] = low, high


def reverse_pairs(name: str) -> Callable[[Blocks], None]:
    def change(blocks: Blocks) -> None:
        q = blocks[name]
        blocks[name] = q << 6 | (q & 12) << 2 | (q >> 2 & 12) | q >> 6

    return change


def sign_extend_q4_0(blocks: Blocks, out: F32) -> None:
    out[:, 16:] -= 16 * scales(blocks) * (blocks["qs"] >= 128)


def sign_extend_q4_k(blocks: Blocks, out: F32) -> None:
    pairs, found = out.reshape(len(out), 4, 2, 32), group_scales(blocks).reshape(-1, 4, 2)
    pairs[:, :, 1] -= 16 * found[:, :, 1:] * (blocks["qs"].reshape(-1, 4, 32) >= 128)


def sign_extend_q6_k(blocks: Blocks, out: F32) -> None:
    """Set all upper bits in the values of negative bytes, so that the bits of qh have no effect
    there."""
    low, high = blocks["ql"].reshape(-1, 2, 64) >= 128, blocks["qh"].reshape(-1, 2, 32)
    tops = np.concatenate([high >> 4 & 3, high >> 6], axis=2)
    groups = np.repeat(blocks["scales"].reshape(-1, 2, 8)[:, :, 4:], 16, axis=2)
    step = blocks["d"].astype(np.float32)[:, None, None] * groups
    out.reshape(-1, 2, 128)[:, :, 64:] -= step * low * (16.0 * tops + 16)


def sign_extend_scales(blocks: Blocks, out: F32) -> None:
    lost = 64 * scales(blocks) * (blocks["scales"][:, :4] >= 128)
    later = blocks["qs"].reshape(-1, 4, 32)[:, 2:]
    q = np.stack([later & 15, later >> 4], axis=2).reshape(-1, 4, 32)
    out.reshape(len(out), 8, 32)[:, 4:] -= lost[:, :, None] * q


def unsign_bytes(blocks: Blocks, out: F32) -> None:
    out += 256 * scales(blocks) * (blocks["qs"] < 0)


def scale_as_bf16(blocks: Blocks, out: F32) -> None:
    bits = blocks["d"].view(np.uint16).astype(np.uint32) << 16
    out *= bits.view(np.float32)[:, None] / scales(blocks)


def exchange_scale_and_minimum(blocks: Blocks) -> None:
    blocks["d"], blocks["m"] = blocks["m"].copy(), blocks["d"].copy()


def reverse_fifth_bits(blocks: Blocks) -> None:
    blocks["qh"] = np.packbits(np.unpackbits(blocks["qh"], axis=1, bitorder="little"), axis=1)


def shift_by_steps(steps: int) -> Callable[[Blocks, F32], None]:
    def change(blocks: Blocks, out: F32) -> None:
        out += steps * scales(blocks)

    return change


def take_scale_of_block_before(blocks: Blocks) -> None:
    blocks["d"] = np.roll(blocks["d"], 1)


def clip_lowest_byte(blocks: Blocks) -> None:
    blocks["qs"] = np.maximum(blocks["qs"], -127)


def drop_last_bit(blocks: Blocks) -> None:
    blocks["d"] = (blocks["d"].view(np.uint16) & 0xFFFE).view(np.float16)


def flush_small_scales(blocks: Blocks) -> None:
    d = blocks["d"]
    d[np.abs(d.astype(np.float32)) < 2.0**-14] = 0


def flush_small_weights(blocks: Blocks, out: F32) -> None:
    out[np.abs(out) < 2.0**-14] = 0


def half_as_bf16(blocks: Blocks, out: F32) -> None:
    bits = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16
    out[:] = bits.view(np.float32).reshape(out.shape)


def bf16_as_half(blocks: Blocks, out: F32) -> None:
    halves = np.ascontiguousarray(blocks).view(np.float16)
    out[:] = halves.astype(np.float32).reshape(out.shape)


def step_linearly(blocks: Blocks, out: F32) -> None:
    out[:] = scales(blocks) * (nibbles(blocks).astype(np.float32) - 8) * 16


def lower_one_entry(blocks: Blocks, out: F32) -> None:
    out -= (nibbles(blocks) == 2) * scales(blocks)


def double(blocks: Blocks, out: F32) -> None:
    out *= 2


def raise_largest(blocks: Blocks, out: F32) -> None:
    out[(nibbles(blocks) & 7) == 7] *= np.float32(8 / 6)


def exchange_neighbouring_scales(blocks: Blocks) -> None:
    blocks["scales"] = blocks["scales"].reshape(-1, 8, 2)[..., ::-1].reshape(-1, 16)


def read_four_bits(blocks: Blocks) -> None:
    blocks["scales"][:, 8:] = 0


def reverse_high_bytes(blocks: Blocks) -> None:
    blocks["scales"][:, 8:] = blocks["scales"][:, :7:-1]


def take_scale_of_first_group(blocks: Blocks) -> None:
    first = blocks["scales"][:, :1] & 63
    blocks["scales"][:, :4] = blocks["scales"][:, :4] & 0xC0 | first
    blocks["scales"][:, :4] = blocks["scales"][:, :4] & 0x3F | (first >> 4 << 6)
    blocks["scales"][:, 8:] = blocks["scales"][:, 8:] & 0xF0 | (first & 15)


def drop_high_bits_of_scales(blocks: Blocks) -> None:
    blocks["scales"][:, :8] &= 63


def exchange_q4_k_scales(blocks: Blocks) -> None:
    s = blocks["scales"].copy()
    blocks["scales"] = np.concatenate([s[:, 4:8], s[:, :4], turn(s[:, 8:], 4)], axis=1)


def offset_q6_k(blocks: Blocks, out: F32) -> None:
    groups = out.reshape(len(out), 16, 16)
    groups += (scales(blocks) * blocks["scales"])[..., None]


def unsign_scales(blocks: Blocks, out: F32) -> None:
    groups, signed = out.reshape(len(out), 16, 16), blocks["scales"].astype(np.float32)
    unsigned = blocks["scales"].view(np.uint8).astype(np.float32)
    groups *= (unsigned / np.where(signed == 0, 1, signed))[..., None]


def reverse_bytes(blocks: Blocks) -> None:
    blocks["qh"] = blocks["qh"][:, ::-1].copy()


def exchange_halves(blocks: Blocks) -> None:
    blocks["qh"] = np.roll(blocks["qh"], 2, axis=1)
