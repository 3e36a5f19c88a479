"""Of a large model few tokens are generated; many of its first layer, which is soon read."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.engine.batch import steps_of
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.own_prompts import WHERE, checked
from lockstep.harness.check import generated
from lockstep.harness.check.check import open_plan
from lockstep.harness.check.generated import LEAST, STEPS, steps_for
from lockstep.harness.context import further_runs
from lockstep.harness.records import Verdict
from lockstep.harness.suites.decode import fewer_reads, seeded_behind
from tests.black_boxes import with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import builtin
from tests.split_files import write_parts

FEW = 18


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is taken for one of gigabytes."""
    monkeypatch.setattr(further_runs, "SMALL", 0)


class WrongLater(Reference, name="longer text: wrong from token 30 on"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        right = super().greedy(prompt, n)
        return [*right[:30], *((token + 1) % 320 for token in right[30:])]


class OneModelAlone(Reference, name="longer text: takes no other model"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return [(token + 1) % 320 for token in super().greedy(prompt, n)]


def last_said(model: Path, engine: str, n_steps: int = FEW) -> Verdict:
    plan = plan_for(model, engine=engine, oracle="llama.cpp", n_tokens=32, n_steps=n_steps)
    opened = open_plan(plan, lambda _: None)
    try:
        return list(checked(plan, opened.context))[-1]
    finally:
        opened.close()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("engine", ["reference", "fast", "honest:float64"])
def test_an_honest_engine_goes_on_as_llama_cpp_does(engine: str, tmp_path: Path) -> None:
    found = last_said(builtin("q4_0", tmp_path), engine)
    assert found.status in ("agreed", "excused")
    assert found.summary.startswith(f"{WHERE}{STEPS} greedy tokens are the same") or (
        "a tie within the noise" in found.summary
    )


@pytest.mark.usefixtures("large")
def test_who_is_wrong_later_than_the_whole_model_is_asked_is_found(tmp_path: Path) -> None:
    found = last_said(builtin("q4_0", tmp_path), WrongLater.name)
    assert (found.status, found.key) == ("diverged", "decode/longer text")
    assert found.detail["step"] == 30
    assert f"{WHERE}greedy token 30 is" in found.summary


@pytest.mark.usefixtures("large")
def test_who_is_wrong_from_the_start_is_not_held_to_a_model_that_nobody_has_trained(
    tmp_path: Path,
) -> None:
    found = last_said(builtin("q4_0", tmp_path), OneModelAlone.name)
    assert found.status == "not-applicable"
    assert "it may take no other model" in found.summary


def test_a_small_model_is_asked_for_all_of_them_itself(tmp_path: Path) -> None:
    found = last_said(builtin("q4_0", tmp_path), WrongLater.name)
    assert "greedy tokens" not in found.summary


@pytest.mark.usefixtures("large")
def test_a_check_of_a_large_model_asks_for_both(tmp_path: Path) -> None:
    found = {}
    for n_steps in (STEPS, FEW):
        asked = {"oracle": "llama.cpp", "suites": ("decode",), "n_steps": n_steps}
        plan = plan_for(builtin("q4_0", tmp_path), engine=WrongLater.name, **asked)
        found[n_steps] = list(with_made_models(plan))
    wrong = {n: {v.key for v in said if v.status == "diverged"} for n, said in found.items()}
    assert wrong == {STEPS: {"decode/token"}, FEW: {"decode/longer text"}}
    assert any(v.summary.startswith(f"{FEW} greedy tokens are the same") for v in found[FEW])


@pytest.mark.usefixtures("large")
def test_each_layer_meets_batches_of_all_sizes_and_as_many_cells(tmp_path: Path) -> None:
    sizes = {}
    for n_steps in (FEW, STEPS):
        opened = open_plan(
            plan_for(builtin("q4_0", tmp_path), engine="reference", n_steps=n_steps),
            lambda _: None,
        )
        try:
            ids = [*range(n_steps), *seeded_behind(opened.context, 5 + n_steps)]
            batches = fewer_reads(opened.context, steps_of([1, 2, 3, 4, 5], ids))
        finally:
            opened.close()
        sizes[n_steps] = [len(batch) for batch in batches]
    assert {*sizes[FEW]} >= {1, *further_runs.TOGETHER}
    assert sum(sizes[FEW]) == sum(sizes[STEPS])
    assert sizes[FEW].count(1) == FEW // 2


def test_as_many_tokens_are_generated_as_read_a_budget_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = builtin("q4_0", tmp_path)
    size = model.stat().st_size
    assert steps_for(model) == STEPS
    for tokens, n in ((1000, STEPS), (40, 40), (20, 20), (3, LEAST)):
        monkeypatch.setattr(generated, "READ", tokens * size)
        assert steps_for(model) == n
    assert steps_for(tmp_path / "absent.gguf") == STEPS


def test_all_parts_of_a_split_model_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtin("q4_0", tmp_path)
    with GgufFile.open(whole) as file:
        n = len(file.tensors)
    parts = write_parts(whole, tmp_path, (0, n // 2, n - n // 2))
    monkeypatch.setattr(generated, "READ", 40 * sum(part.stat().st_size for part in parts))
    assert steps_for(parts[0]) == 40
