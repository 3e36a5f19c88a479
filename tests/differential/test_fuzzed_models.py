"""Whole models with a small fault reach llama.cpp's loader, which accepts or refuses them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.fuzzers.gguf.fuzzer import GgufFuzzer
from lockstep.harness.fuzzers.gguf.models import ARCHITECTURES, model_cases, tiny_models
from lockstep.harness.records import EXACT

PLAN = FuzzPlan(targets=("models",), cases=96, seed=3)


@pytest.fixture(scope="module")
def models() -> Iterator[list[bytes]]:
    with Runner().open("llama.cpp", None, EXACT) as session:
        yield tiny_models(session)


def test_case_is_one_model_with_one_change(models: list[bytes]) -> None:
    made = model_cases(3, 0, 60, models)
    assert [case.raw for case in made[: len(models)]] == models
    assert made[30:] == model_cases(3, 30, 30, models)
    for case in made[len(models) :]:
        was = GgufFile.from_bytes(models[case.number % len(models)])
        now = GgufFile.from_bytes(case.raw)  # the changed bytes are a valid file
        assert abs(len(was.metadata) - len(now.metadata)) <= 1
        rows = zip(was.tensors.values(), now.tensors.values(), strict=True)
        assert sum(a != b for a, b in rows) <= 1


def test_most_files_reach_the_loader_and_some_are_refused_late(tmp_path: Path) -> None:
    result = run_campaign("gguf", PLAN, tmp_path, [])
    (about,) = (v.detail for v in result.verdicts if "stages" in v.detail)
    load = about["stages"]["llama.cpp load"]
    assert load["asked"] == about["files"] == PLAN.cases
    assert load["both accept"] >= len(ARCHITECTURES)
    assert load["refused late"] > 5
    assert result.code == 0, [v.summary for v in result.verdicts if v.status != "agreed"]


def test_oracle_that_cannot_make_the_models_is_refused() -> None:
    with pytest.raises(BadInput, match=r"llama\.cpp makes the family"):
        GgufFuzzer().check(FuzzPlan(targets=("models",), oracle="reference"))
