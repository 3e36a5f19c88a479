"""Noise floors that tests share. A noise floor is reused only if all its inputs are the same.
Otherwise a wrong op in one test would be judged by the noise of the right op."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import MEANINGS
from lockstep.harness.graph.program import Program
from tests.harness.check.test_check import plan_for
from tests.kept_floors import name_of
from tests.models import builtin, written
from tests.plans import open_both

Recorded = tuple[Program, GgufFile, Build]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with open_both(plan_for(builtin("f32", tmp_path_factory.mktemp("m")))) as both:
        honest: Any = both.context.honest
        yield honest.program(both.context.batches), honest.file, honest.build


def test_same_inputs_give_a_noise_floor_the_same_name(recorded: Recorded) -> None:
    assert name_of(*recorded, seed=0, runs=3) == name_of(*recorded, seed=0, runs=3)


def test_other_seeds_runs_or_roundings_have_another_noise_floor(recorded: Recorded) -> None:
    program, file, build = recorded
    names = {
        name_of(program, file, build, 0, 3),
        name_of(program, file, build, 1, 3),
        name_of(program, file, build, 0, 0),
        name_of(program, file, replace(build, lanes=2 * build.lanes), 0, 3),
    }
    assert len(names) == 4


def test_other_weights_have_another_noise_floor(recorded: Recorded, tmp_path: Path) -> None:
    program, file, build = recorded
    with GgufFile.open(written(tmp_path, seed=7)) as other:
        assert name_of(program, file, build, 0, 3) != name_of(program, other, build, 0, 3)


def test_op_replaced_by_a_test_has_another_noise_floor(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = name_of(*recorded, seed=0, runs=3)

    def wrong(*args: Any) -> Any:
        return MEANINGS["ROPE"](*args)

    monkeypatch.setitem(MEANINGS, "RMS_NORM", wrong)
    assert name_of(*recorded, seed=0, runs=3) != before
