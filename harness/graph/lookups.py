"""Comparison of GELU. ggml looks it up in a table of half-precision numbers, and other engines may
compute it with wider numbers.

A step of the table is larger than the difference between tanh GELU and erf GELU. So a step of the
table cannot be a general tolerance. An engine without a table has no steps. An engine with a table
differs only where a neighbouring argument has another half-precision result.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.harness.graph.program import Place
from lockstep.harness.graph.row_noise import Noise, Noises
from lockstep.harness.graph.segment import Segment
from lockstep.harness.graph.watched import Seen
from lockstep.harness.graph.ways import Honest
from lockstep.harness.judging.stored import step_of

# Steps by which a product may be off if one factor is one step off: at most two, and two more if
# the steps of both factors cancel in the runs below.
FACTOR_STEPS = 4
LOOKED_UP = frozenset({"GELU", "GELU_QUICK", "GEGLU", "GEGLU_QUICK"})

Ways = tuple[tuple[Seen, Noises], ...]  # values of honest engines, and the noise of each


class TableJudge(Protocol):
    """The part of a segment judge that this module uses."""

    build: Build

    @property
    def usable(self) -> Mapping[Place, NDArray[Any]]: ...

    def run(
        self,
        way: Honest,
        build: Build | None = None,
        values: Mapping[Place, Any] | None = None,
        *,
        of: Sequence[Segment],
    ) -> Mapping[Place, Seen]: ...

    def noise(
        self,
        honest: Mapping[Place, Seen],
        seeds: range,
        of: Sequence[Segment],
        *,
        jitter: bool = False,
    ) -> Mapping[Place, Noise]: ...


def ways_of_lookups(
    table: TableJudge,
    formula: TableJudge,
    segments: Sequence[Segment],
    honest: Mapping[Place, Seen],
    plain: Mapping[Place, Seen],
    seeds: range,
) -> dict[Place, Ways]:
    """Return for each segment of one lookup the values and noises with which it may agree. table: a
    judge that looks GELU up; formula: a judge that computes it; honest, plain: the runs of the two
    judges."""
    of = [s for s in segments if len(s.formula) == 1 and s.op in LOOKED_UP]
    if not of:
        return {}
    none = dict.fromkeys((s.place for s in of), Noise())
    smooth = formula.noise(plain, seeds, of, jitter=True)
    steps = [table.run(Honest(), values=values, of=of) for values in a_step_off(table)]
    found: dict[Place, Ways] = {}
    for place in (segment.place for segment in of):
        seen = honest[place]
        far = [np.abs(step[place].numbers.astype(np.float64) - seen.numbers) for step in steps]
        room = np.maximum(*far) + FACTOR_STEPS * step_of(seen.truth)
        with_steps = replace(seen, allowed=seen.allowed + room)
        found[place] = (with_steps, (none, none)), (plain[place], (none, smooth))
    return found


def a_step_off(judge: TableJudge) -> Iterator[dict[Place, NDArray[Any]]]:
    """Yield the shown values with every number one step smaller, then one step larger."""
    for sign in (-1, 1):
        with np.errstate(invalid="ignore"):  # an engine may show signalling NaN
            yield {
                place: value + sign * step_of(value) if value.dtype.kind == "f" else value
                for place, value in judge.usable.items()
            }
