"""Products of quantised weights as integers, with a scale for each run of integers.

The results equal those of decoded weights and activations up to the last bits of float64 sums. They
take a fraction of the time: sums of integers are exact, and processors have instructions for them.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import F64
from lockstep.engine.kernels import integers as kernels
from lockstep.engine.kernels.raw_bytes import readable
from lockstep.engine.kernels.unpacking import pointer_to
from lockstep.engine.kernels.weight_steps import steps_of_rows
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offset_of
from lockstep.engine.weights import Weight

LARGEST_STEP = 127  # largest step of activations in every format
SMALL_BLOCK = 32  # number of weights
GROUP = 16  # smallest number of weights that share all scales, in every format
OFFSET = 128  # added to steps that are stored as unsigned bytes
SHIFT = 11  # shift of minima in place of `dmin`: 2048 exceeds 63 * 31, the largest step of Q5_K
SUM = 2**31 - 1
MOST_REST = 8  # one column in so many may have values that are no multiples of a scale
# factors that make weights with a scale of one whole numbers: grids are shifted by an eighth, or
# their scales are odd multiples of an eighth or a quarter
FACTORS = {"IQ1_S": 8, "IQ1_M": 8, "IQ2_XXS": 8, "IQ2_XS": 8, "IQ2_S": 8, "IQ3_XXS": 4}


@dataclass(frozen=True, eq=False)
class Steps:
    """Activations as integers (`steps`) times `scales`, plus `rest` in the columns that are not
    integers."""

    steps: NDArray[Any]  # (runs, columns of a run / 2, tokens, 2), or in fours of int8
    starts: NDArray[np.int32]  # (runs, tokens): the contribution of the weights' offset
    scales: F64  # (runs, tokens)
    columns: NDArray[np.intp]  # columns with a remainder
    rest: F64  # (tokens, these columns): the remainders
    tokens: int  # number of tokens; other arrays are padded with zeros

    @cached_property
    def sizes(self) -> F64:
        """Return the sum of magnitudes over each 16 columns, or slightly more: (tokens, columns /
        16).
        """
        runs, words, room, per = self.steps.shape
        in_groups = (runs, words * per // GROUP, GROUP // per, room, per)
        found = np.abs(self.steps.astype(np.int32).reshape(in_groups)).sum(axis=(2, 4))
        sizes = (found * self.scales[:, None]).reshape(-1, room)[:, : self.tokens]
        np.add.at(sizes, self.columns // GROUP, np.abs(self.rest).T)
        by_token: F64 = sizes.T
        return by_token


@dataclass(frozen=True, eq=False)
class WeightSteps:
    """Rows of a matrix as steps times scales, plus minima of groups."""

    steps: NDArray[Any]  # (rows and padding, columns), of int16 or uint8
    offset: int  # offset that was added to the steps
    scales: F32  # (rows and padding, blocks)
    minima: F32 | None  # (rows, groups)
    n: int

    def columns(self, at: NDArray[np.intp]) -> F64:
        """Decode the weights of these columns, without minima: (rows, these columns)."""
        per = self.steps.shape[1] // self.scales.shape[1]
        scales = self.scales[: self.n, at // per].astype(np.float64)
        return scales * (self.steps[: self.n, at].astype(np.float64) - self.offset)


def takes(kind: type[WeightFormat]) -> bool:
    """Return True if a block of these weights has one scale, a half, for all of its steps.

    For a decoder that is wrong on purpose, return False. It must decode the real bytes, because its
    error may vanish with another scale.
    """
    if kind.family.get(kind.name) is not kind:
        return False
    return "d" in (kind.layout.names or ()) and kind.layout["d"] == np.dtype("<f2")


def in_bytes(kind: type[WeightFormat]) -> bool:
    """Return True if steps fit in bytes. Steps of larger blocks do not, because they include group
    scales."""
    return kind.weights == SMALL_BLOCK


def steps_of(values: F64, run: int, *, in_bytes: bool = False) -> Steps | None:
    """Return converted values (tokens, columns) as steps, or None if that is impossible.

    run: the number of values with one scale; in_bytes: True if the weights' steps are bytes.
    """
    tokens, columns = values.shape
    room = -(-tokens // kernels.TOKENS) * kernels.TOKENS
    per, dtype = (4, np.int8) if in_bytes else (2, np.int16)
    steps = np.zeros((columns // run, run // per, room, per), dtype)
    scales, starts = np.zeros((columns // run, room)), np.zeros((columns // run, room), np.int32)
    rest = np.zeros(columns, np.bool_)
    wide, offset = np.require(values, np.float64, ["C", "W"]), OFFSET if in_bytes else 0
    kernels.steps_of(wide, float(LARGEST_STEP), offset, steps, starts, scales, rest)
    if rest.sum() * MOST_REST > columns or not np.isfinite(scales).all():
        return None
    at = np.flatnonzero(rest)
    left = np.zeros((tokens, len(at)))
    for i, column in enumerate(at):
        run_of, within = divmod(int(column), run)
        known = steps[run_of, within // per, :tokens, within % per] * scales[run_of, :tokens]
        left[:, i] = values[:, column] - known
    return Steps(steps, starts, scales, at, left, tokens)


def rows_of(
    weight: Weight, rows: slice, run: int, group: int, minimum: str | None
) -> WeightSteps | None:
    """Return the integer steps of some rows; None if a scale is not finite or steps do not fit.

    run: number of weights for one scale of the activations. group: number of weights that share a
    minimum; minimum: the field of the minimum (`m`) or of the scale of minima (`dmin`), if any.
    """
    kind, n = weight.format, rows.stop - rows.start
    raw = readable(weight.raw[rows.start * weight.row_bytes : rows.stop * weight.row_bytes])
    per, small = weight.shape[-1] // kind.weights, in_bytes(kind)
    room = -(-n // kernels.ROWS) * kernels.ROWS
    made = np.empty if room == n else np.zeros
    steps = made((room, weight.shape[-1]), np.uint8 if small else np.int16)
    groups = weight.shape[-1] // group if minimum == "dmin" else 0
    scales, minima = np.zeros((room, per), np.float32), np.empty((n, groups), np.float32)
    most = min(SUM // (LARGEST_STEP + 1) // run, 32767)
    limits = (-OFFSET, OFFSET - 1, OFFSET) if small else (-most, most, 0)
    if not steps_of_rows(
        pointer_to(kind.unpack),
        raw,
        *patterns_of(kind.name, per),
        offset_of(kind, "d"),
        SHIFT,
        np.float32(FACTORS.get(kind.name, 1)),
        tuple(np.int32(n) for n in limits),
        steps,
        scales,
        minima,
    ):
        return None
    if minimum is None:
        return WeightSteps(steps, limits[2], scales, None, n)
    blocks: NDArray[Any] = raw.view(kind.layout)
    lowest = blocks[minimum].astype(np.float32).reshape(n, per)
    if not np.isfinite(lowest).all():
        return None
    if groups:
        lowest = minima * -np.repeat(lowest, groups // per, axis=1)
    return WeightSteps(steps, limits[2], scales, lowest, n)


@cache
def patterns_of(name: str, blocks: int) -> tuple[Bytes, Bytes]:
    """Return the mask of the bytes kept in a row of blocks, and the bytes that replace the others.

    The replacements are a scale of one, and minima that can be distinguished from steps.
    """
    layout = WeightFormat.member(name).layout
    left, instead = np.full(layout.itemsize, 255, np.uint8), np.zeros(layout.itemsize, np.uint8)
    for field, scale in (("d", 1), ("m", 0), ("dmin", -(1 << SHIFT))):
        if field in (layout.names or ()):
            left.view(layout)[field], instead.view(layout)[field] = 0, scale
    return np.tile(left, blocks), np.tile(instead, blocks)


def product(
    left: Steps, sums: F64 | None, right: WeightSteps, *, sizes: bool
) -> tuple[F64, F64 | None]:
    """Return the product of activations and weights: (tokens, rows).

    Also return, for each number of the result, the sum of its terms' magnitudes, or None unless
    `sizes` is true. sums: (tokens, groups), by which minima are multiplied.
    """
    out = np.zeros((len(right.steps), left.steps.shape[2]))
    more = np.zeros(out.shape if sizes else (0, 0))
    far = np.abs(right.scales) if sizes else right.scales
    words = right.steps.view(np.int32)
    kernels.products(words, right.scales, left.steps, left.starts, left.scales, out, far, more)
    value: F64 = out[: right.n, : left.tokens].T
    size: F64 | None = more[: right.n, : left.tokens].T if sizes else None
    others = []
    if len(left.columns):
        others.append((left.rest, right.columns(left.columns)))
    if sums is not None and right.minima is not None:
        others.append((sums, right.minima.astype(np.float64)))
    for a, w in others:
        value = value + a @ w.T
        if size is not None:
            size = size + np.abs(a) @ np.abs(w).T
    return value, size
