"""Products of quantised weights as what they are: integers, times a scale for each run of them.

The same numbers as of decoded weights and activations, to the last bit of float64's sums, in a
fraction of the time: sums of integers are exact, and a processor has instructions for them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import F64
from lockstep.engine.kernels import integers as kernels
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight

LARGEST_STEP = 127  # of activations: the largest of a block is as many scales, in every format
BASE = 2048  # of minima, in place of `dmin`: more than 63 * 31, the largest step of Q5_K
SUM = 2**31 - 1
MOST_REST = 8  # a share of the columns may hold what is no multiple of a scale
# what makes integers of the weights of a block whose scale is one: grids are shifted by an eighth,
# or their scales are odd multiples of one
FACTORS = {"IQ1_S": 8, "IQ1_M": 8, "IQ2_XXS": 8, "IQ2_XS": 8, "IQ2_S": 8, "IQ3_XXS": 4}


@dataclass(frozen=True, eq=False)
class Steps:
    """Activations: `steps` times `scales`, and the rest."""

    steps: NDArray[np.int16]  # (runs, columns of a run / 2, tokens, 2)
    scales: F64  # (runs, tokens)
    columns: NDArray[np.intp]  # where there is a rest
    rest: F64  # (tokens, these columns)
    tokens: int  # those of the arrays but for `rest` are filled up with zeros

    def magnitudes(self) -> "Steps":
        rest: F64 = np.abs(self.rest)
        return Steps(np.abs(self.steps), self.scales, self.columns, rest, self.tokens)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a matrix: steps times scales, plus minima of groups."""

    steps: NDArray[np.int16]  # (rows and some zeros, columns)
    scales: F32  # (as many, blocks)
    minima: F32 | None  # (rows, groups)
    n: int

    def magnitudes(self) -> "Rows":
        minima = None if self.minima is None else np.abs(self.minima)
        return Rows(np.abs(self.steps), np.abs(self.scales), minima, self.n)

    def columns(self, at: NDArray[np.intp]) -> F64:
        """(rows, these columns), without minima."""
        per = self.steps.shape[1] // self.scales.shape[1]
        scales = self.scales[: self.n, at // per].astype(np.float64)
        return scales * self.steps[: self.n, at]


def takes(kind: type[WeightFormat]) -> bool:
    """Whether a block of such weights has one scale, a half, for all of its steps.

    A decoder that is wrong on purpose is asked for weights as they are: with another scale it may
    be right.
    """
    if kind.family.get(kind.name) is not kind:
        return False
    return "d" in (kind.layout.names or ()) and kind.layout["d"] == np.dtype("<f2")


def steps_of(values: F64, run: int) -> Steps | None:
    """values: (tokens, columns), converted to a format of blocks; run: those of one scale.

    None where they are not: an engine may have converted them otherwise, or a scale is no number.
    """
    tokens, columns = values.shape
    room = -(-tokens // kernels.TOKENS) * kernels.TOKENS
    steps = np.zeros((columns // run, run // 2, room, 2), np.int16)
    scales = np.zeros((columns // run, room))
    rest = np.zeros(columns, np.bool_)
    kernels.steps_of(
        np.require(values, np.float64, ["C", "W"]), float(LARGEST_STEP), steps, scales, rest
    )
    if rest.sum() * MOST_REST > columns or not np.isfinite(scales).all():
        return None
    at = np.flatnonzero(rest)
    left = np.zeros((tokens, len(at)))
    for i, column in enumerate(at):
        run_of, within = divmod(int(column), run)
        known = steps[run_of, within // 2, :tokens, within % 2] * scales[run_of, :tokens]
        left[:, i] = values[:, column] - known
    return Steps(steps, scales, at, left, tokens)


def rows_of(weight: Weight, rows: slice, run: int, group: int, minimum: str | None) -> Rows | None:
    """None where a scale is no number, or steps are no integers for which there is room.

    run: weights that meet one scale of the activations; group: those that share a minimum, whose
    field is `minimum`.
    """
    kind, n = weight.format, rows.stop - rows.start
    raw = weight.raw[rows.start * weight.row_bytes : rows.stop * weight.row_bytes]
    blocks: NDArray[Any] = raw.copy().view(kind.layout)
    scales = blocks["d"].astype(np.float32).reshape(n, -1)
    fields = [name for name in ("d", minimum) if name]
    if not all(np.isfinite(blocks[name]).all() for name in fields):
        return None
    blocks["d"] = 1
    lowest = blocks[minimum].astype(np.float32).reshape(n, -1) if minimum else None
    if minimum:
        blocks[minimum] = -BASE if minimum == "dmin" else 0
    one = kind.dequantize(blocks.view(np.uint8)).reshape(n, weight.shape[-1])
    room = -(-n // kernels.ROWS) * kernels.ROWS
    steps = np.zeros((room, weight.shape[-1]), np.int16)
    groups = weight.shape[-1] // group if minimum == "dmin" else 0
    minima = np.empty((n, groups), np.float32)
    factor, most = FACTORS.get(kind.name, 1), SUM // (LARGEST_STEP + 1) // run
    base = BASE if groups else 0
    if not kernels.whole(one, np.float32(factor), base, min(most, 32767), steps, minima):
        return None
    padded = np.zeros((room, scales.shape[1]), np.float32)
    padded[:n] = scales / np.float32(factor)
    if minimum == "dmin" and lowest is not None:
        lowest = minima * -np.repeat(lowest, groups // lowest.shape[1], axis=1)
    return Rows(steps, padded, lowest, n)


def product(left: Steps, sums: F64 | None, right: Rows) -> F64:
    """sums: (tokens, groups), which minima are multiplied by -> (tokens, rows)."""
    out = np.zeros((len(right.steps), left.steps.shape[2]))
    kernels.products(right.steps.view(np.int32), right.scales, left.steps, left.scales, out)
    found: F64 = out[: right.n, : left.tokens].T
    if len(left.columns):
        found = found + left.rest @ right.columns(left.columns).T
    if sums is not None and right.minima is not None:
        found = found + sums @ right.minima.astype(np.float64).T
    return found
