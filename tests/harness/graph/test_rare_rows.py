"""A row is not a fault if honest runs choose the same experts, even if only a few runs do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.ops.build import Build
from lockstep.engine.quants.base import F32
from lockstep.harness.graph.program import Place
from lockstep.harness.graph.rare_choices import explained_places
from lockstep.harness.graph.row_noise import Noise
from lockstep.harness.graph.segment import Segment
from lockstep.harness.graph.watched import Seen
from lockstep.harness.graph.ways import Honest, Noisy
from lockstep.harness.judging.noise import MORE_RUNS, RARE_RUNS
from tests.models import LANES

PLACE: Place = (0, 0, 9)
BUILD = Build(lanes=LANES)
TRUTH = np.zeros((4, 3), np.float32)
NOISE = {PLACE: Noise(worst=0.02, share=np.inf)}


def with_rows(**rows: float) -> F32:
    """Return the true values with some rows replaced: r2=1.0 changes the third row."""
    found = TRUTH.copy()
    for name, value in rows.items():
        found[int(name[1:])] = value
    return found


def seen(values: F32) -> Mapping[Place, Seen]:
    allowed = np.full(values.shape, 0.01)
    return {PLACE: Seen(value=values, truth=values, allowed=allowed, reason="")}


@dataclass(kw_only=True)
class Runs:
    """A judge whose noisy runs return these values one after the other, and then the truth."""

    engine: F32
    runs: Sequence[F32]
    build: Build = BUILD
    seed: int = 0
    asked: list[tuple[int, Build | None]] = field(default_factory=list)

    @property
    def shown(self) -> Mapping[Place, F32]:
        return {PLACE: self.engine}

    def run(
        self, way: Honest, build: Build | None = None, *, of: Sequence[Segment]
    ) -> Mapping[Place, Seen]:
        assert isinstance(way, Noisy)
        assert [segment.place for segment in of] == [PLACE]
        number = len(self.asked)
        self.asked.append((way.seed, build))
        return seen(self.runs[number] if number < len(self.runs) else TRUTH)


def segment(*, chooses: bool = True) -> Any:
    return SimpleNamespace(place=PLACE, sorts=((0, 0, 3),) if chooses else ())


def is_explained(judge: Runs, *, chooses: bool = True, small: bool = True) -> bool:
    suspects = [segment(chooses=chooses)]
    return explained_places(judge, suspects, seen(TRUTH), NOISE, is_small=small) == {PLACE}


def test_row_found_in_a_late_run_is_right() -> None:
    judge = Runs(engine=with_rows(r2=1.03), runs=[TRUTH] * 50 + [with_rows(r2=1.0)])
    assert is_explained(judge)
    assert len(judge.asked) == 51


def test_two_rows_may_be_explained_by_two_runs() -> None:
    judge = Runs(
        engine=with_rows(r1=2.0, r2=1.0), runs=[with_rows(r1=2.0), with_rows(r2=1.0, r1=9.0)]
    )
    assert is_explained(judge)


@pytest.mark.parametrize("wrong", [1.1, np.nan, np.inf])
def test_row_found_in_no_run_is_a_fault(wrong: float) -> None:
    """The row is a fault, whatever its wrong value is."""
    judge = Runs(engine=with_rows(r2=wrong), runs=[with_rows(r2=1.0), with_rows(r2=9.0)])
    assert not is_explained(judge)
    assert len(judge.asked) == RARE_RUNS


def test_row_without_a_limit_may_be_nan_and_spoils_no_other_row() -> None:
    """The row overflows in honest runs. The segment's own verdict ignores this row too."""
    lost = np.array([[False], [False], [False], [True]])
    noise = {PLACE: Noise(worst=0.02, share=np.inf, lost=lost)}
    for choice, is_right in ((1.0, True), (2.0, False)):
        judge = Runs(engine=with_rows(r2=choice, r3=np.nan), runs=[with_rows(r2=1.0)])
        found = explained_places(judge, [segment()], seen(TRUTH), noise, is_small=False)
        assert found == ({PLACE} if is_right else set())


def test_one_wrong_element_of_a_row_is_a_fault() -> None:
    engine = with_rows(r2=1.0)
    engine[2, 1] = 1.5
    assert not is_explained(Runs(engine=engine, runs=[with_rows(r2=1.0)]))


def test_differences_in_most_rows_are_not_a_rare_choice() -> None:
    off = with_rows(r0=1.0, r1=1.0, r2=1.0)
    judge = Runs(engine=off, runs=[off])
    assert not is_explained(judge)
    assert not judge.asked


def test_model_without_choices_gets_no_run() -> None:
    judge = Runs(engine=with_rows(r2=1.0), runs=[with_rows(r2=1.0)])
    assert not is_explained(judge, chooses=False)
    assert not judge.asked


def test_a_tensor_of_another_shape_is_a_fault() -> None:
    judge = Runs(engine=np.zeros((2, 3), np.float32), runs=[])
    assert not is_explained(judge)


def test_large_model_gets_fewer_runs() -> None:
    judge = Runs(engine=with_rows(r2=1.0), runs=[])
    assert not is_explained(judge, small=False)
    assert len(judge.asked) == MORE_RUNS


def test_noisy_runs_have_different_errors_and_alternating_formats() -> None:
    judge = Runs(engine=with_rows(r2=1.0), runs=[])
    is_explained(judge, small=False)
    seeds, builds = zip(*judge.asked, strict=True)
    assert len(set(seeds)) == MORE_RUNS
    assert [build == judge.build for build in builds].count(True) == MORE_RUNS // 2
