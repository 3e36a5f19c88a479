"""The numbers that a type of a GGUF file may hold for given weights.

F32, F16 and BF16 have one right value: the nearest, with ties to even. For a quantised type many
codes are right, because quantisers search for scales and weigh errors. Limits are in steps: the
largest weight of a block, divided by the type's number of codes on one side of zero (LEVELS).

A right code lies within half a step of its weight if the block is not clipped. A search tries
scales down to 1 / 1.11 of the plain scale, so the largest weights may be off by one more step.
Scales and minima stored in 6 bits add a third of a step. Therefore no element is off by more than
two steps (ELEMENT). The root mean square of a row's errors is below half a step (ROW). It is about
0.29 steps if the errors are uniform within a step. If the file holds another tensor's weights, they
are off by several steps.

A quantiser that weighs errors by importance (as in a file with keys of IMPORTANCE) may clip
unimportant weights. Zero is a code, or half a step away from a code, so a clipped weight is off by
at most its own size. For such a file, the limit of an element is its weight plus two steps, and the
limit of a row is the energy of its weights.

Types with code books have no such step. With the best scale, codes are orthogonal to their errors.
The energy of the errors is then the energy of the weights minus the energy of the codes, so it
never exceeds the energy of the weights. If the codes belong to unrelated weights, it is the sum of
both energies.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32, Bytes, WeightFormat

ELEMENT, ROW = 2.0, 0.5  # limits in steps
# in steps: quotients may differ in their last bits, and so may the codes of weights between two
# steps
TIE = 1e-3
SIGMAS = 6
IMPORTANCE = "quantize.imatrix."
FEWEST = 0.01  # share of the blocks; another method of quantising would change more of them

LEVELS = {
    "Q3_K": 4.0,
    "Q4_0": 8.0,
    "Q5_0": 16.0,
    "Q6_K": 32.0,
    "Q8_0": 127.0,
    # from minimum to maximum; both are at most the largest magnitude
    "Q2_K": 1.5,
    "Q4_1": 7.5,
    "Q4_K": 7.5,
    "Q5_1": 15.5,
    "Q5_K": 15.5,
    # 127 / 24, because the widest gap between two codes is 24
    "IQ4_NL": 5.3,
    "IQ4_XS": 5.3,
}
F16_STEP = 2.0**-24  # step between subnormal F16 scales
F16_ERROR = 2.0**-10  # relative error of an F16 scale, and of a weight that was F16 before


@dataclass(frozen=True)
class JudgedRows:
    """The judgement of some rows.

    wrong: (rows, columns). unusual: blocks that differ from those of the plain quantiser. sums:
    squared weights, weights times errors, and squared errors, for types with steps.
    """

    wrong: NDArray[np.bool_]
    unusual: NDArray[np.bool_] | None = None  # shape (rows, blocks)
    sums: NDArray[np.float64] | None = None


def round_to_bf16(values: F32) -> NDArray[np.uint16]:
    """Return the upper halves of the nearest BF16 numbers, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 64, rounded).astype(np.uint16)


def cut_to_f16(values: F32) -> F32:
    """Return the values cut to F16 towards zero. No correct converter does this."""
    with np.errstate(over="ignore"):
        near = values.astype(np.float16)
    beyond = np.abs(near.astype(np.float32)) > np.abs(values)
    return np.where(beyond, np.nextafter(near, np.float16(0)), near).astype(np.float32)


def cut_to_bf16(values: F32) -> F32:
    """Return values cut to BF16 towards zero."""
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


CUTS = {"F16": cut_to_f16, "BF16": cut_to_bf16}


def round_to(kind: str, values: F32) -> F32:
    """Return the values rounded to F32, F16 or BF16."""
    if kind == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if kind == "BF16":
        return (round_to_bf16(values).astype(np.uint32) << 16).view(np.float32)
    return values


def same_bits(a: F32, b: F32) -> NDArray[np.bool_]:
    """Return a mask of the elements with the same bits; NaN equals NaN."""
    same: NDArray[np.bool_] = a.view(np.uint32) == b.view(np.uint32)
    return same | (np.isnan(a) & np.isnan(b))


def judge_rows(
    kind: type[WeightFormat], want: F32, raw: Bytes, *, weighed: bool = False
) -> JudgedRows:
    """Return the elements that a right quantiser would not produce.

    `want` is (rows, columns) and contiguous. `weighed` is True if the quantiser may have weighed
    errors by importance.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        got = kind.dequantize(raw).reshape(want.shape)
        if kind.name in ("F32", "F16", "BF16"):
            return JudgedRows(~same_bits(round_to(kind.name, want), got))
        return judge_blocks(kind, want, got, raw, weighed)


def judge_blocks(
    kind: type[WeightFormat], want: F32, got: F32, raw: Bytes, weighed: bool
) -> JudgedRows:
    exact = want.astype(np.float64)
    error = got - exact
    levels = LEVELS.get(kind.name)
    beyond = np.square(error).sum(axis=1) > np.square(exact).sum(axis=1)  # by row
    if levels is None:
        return JudgedRows(np.broadcast_to(beyond[:, None], want.shape) | ~np.isfinite(got))
    sums = np.array([np.vdot(exact, exact), np.vdot(exact, error), np.vdot(error, error)])
    error = np.abs(error)
    shape = (len(want), -1, kind.weights)
    top = np.abs(want).reshape(shape).max(axis=2)  # shape (rows, blocks)
    step = (top / levels).repeat(kind.weights, axis=1)
    allowed = step + levels * F16_STEP
    if weighed:
        return JudgedRows(~(error <= np.abs(exact) + ELEMENT * allowed) | beyond[:, None])
    wrong = ~(error <= ELEMENT * allowed)
    row = np.sqrt(np.square(error / allowed).mean(axis=1)) > ROW
    wrong |= row[:, None] & (error > ROW * allowed)
    unusual = unusual_blocks(kind, want, got.reshape(shape), raw)
    for way in ("F16", "BF16"):  # many files are quantised from an F16 or BF16 file
        if unusual is not None and unusual.any():
            again = unusual_blocks(kind, round_to(way, want), got.reshape(shape), raw)
            unusual &= again if again is not None else unusual
    return JudgedRows(wrong, unusual, sums)


def wrong_factor(sums: NDArray[np.float64], n: int) -> float | None:
    """Return the factor by which all weights of a quantised tensor are too large; None if they are
    not scaled.

    With the nearest codes, errors do not correlate with weights. With the best scales, codes are
    orthogonal to errors. The correlation of errors with weights therefore lies between zero and the
    energy of the errors. Beyond this range, SIGMAS standard deviations of a sum over n weights are
    allowed for chance.
    """
    weights, along, errors = (float(each) for each in sums)
    if not weights > 0:
        return None
    energy = errors / weights
    allowed = energy + SIGMAS * math.sqrt(energy / n)
    return 1 + along / weights if abs(along / weights) > allowed else None


def plain_scale(name: str, blocks: F32) -> tuple[F32, F32] | None:
    """Return the scale and the minimum that ggml's plain quantiser gives each block, before both
    are rounded to F16. Return None for types whose quantiser searches. `blocks` is (rows, blocks,
    weights)."""
    if name == "Q8_0":
        return np.abs(blocks).max(axis=2) / np.float32(127), np.zeros(blocks.shape[:2], np.float32)
    if name in ("Q4_0", "Q5_0"):
        at = np.abs(blocks).argmax(axis=2)[..., None]
        largest = np.take_along_axis(blocks, at, axis=2)[..., 0]
        return largest / np.float32(-LEVELS[name]), np.zeros(blocks.shape[:2], np.float32)
    if name in ("Q4_1", "Q5_1"):
        low = blocks.min(axis=2)
        return (blocks.max(axis=2) - low) / np.float32(2 * LEVELS[name]), low
    return None


def unusual_blocks(
    kind: type[WeightFormat], want: F32, got: F32, raw: Bytes
) -> NDArray[np.bool_] | None:
    """Return a mask of the blocks that differ from the plain quantiser's: in the scale, in the
    minimum, or by a code that is not the nearest. Return None if the type has no plain quantiser.

    `want` is (rows, columns), and `got` is (rows, blocks, weights).
    """
    want = want.reshape(got.shape)
    scales = plain_scale(kind.name, want)
    if scales is None:
        return None
    fields: Any = np.ascontiguousarray(raw).reshape(-1).view(kind.layout).reshape(want.shape[:2])
    scale, low = (each.astype(np.float16) for each in scales)
    unusual = scale.view(np.uint16) != fields["d"].view(np.uint16)
    unusual &= (scale != 0) | (fields["d"] != 0)  # both signs of zero are equal
    step = np.abs(scale.astype(np.float32))[..., None]
    near = (0.5 + TIE) * step + F16_ERROR * np.abs(want)
    if "m" in kind.layout.names:  # type: ignore[operator]
        unusual |= low != fields["m"]
        # errors of the minimum and of the sum
        near = near + 4 * F16_ERROR * np.abs(want).max(axis=2, keepdims=True)
    # these types have no code for the largest weight with the opposite sign
    if kind.name in ("Q4_0", "Q5_0"):
        near = np.where(np.abs(want) > (LEVELS[kind.name] - 1.5) * step, 1.1 * step, near)
    off: NDArray[np.bool_] = unusual | (np.abs(got - want) > near).any(axis=2)
    return off
