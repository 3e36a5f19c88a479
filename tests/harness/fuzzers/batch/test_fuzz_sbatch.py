"""`fuzz batch` on the older sequence-aware batch. Our own model stands in for older versions."""

from pathlib import Path

import pytest

from lockstep.engine.memory.sbatch_schedule import SbatchSchedule
from lockstep.harness.adapters import has_sbatch
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named, run_campaign
from lockstep.harness.fuzzers.batch import fuzzer as batch
from lockstep.harness.fuzzers.batch.judge import in_words, same
from lockstep.harness.fuzzers.batch.sbatch_schedules import SORTED_STABLY, SPLITS, sbatch_schedule
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, schedule_from
from lockstep.harness.synth.small import N_VOCAB
from tests.wrong_splitters import WRONG, caught

CASES = 60


def ubatches_of(case: ScheduleCase) -> list[list[list[int]]]:
    """Return the tokens of each ubatch, call by call, as our model splits them."""
    run = SbatchSchedule(case.sbatch, N_VOCAB, case.n_ubatch)
    answers = [run.step(step) for step in case.steps]
    return [[[row[0] for row in u[2]] for u in answer["ubatches"]] for answer in answers]


@pytest.mark.parametrize(
    ("cls", "kind", "symptom"), WRONG, ids=lambda row: getattr(row, "name", row)
)
def test_a_wrong_splitter_is_caught_with_at_most_two_ubatches(
    cls: type[Reference], kind: str, symptom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "of_sbatch", lambda *_: True)
    monkeypatch.setitem(Adapter.family, cls.name, cls)
    found, case = caught(cls, kind, "reference")
    assert found.detail["symptom"] == symptom
    assert case.sbatch == SPLITS[kind]
    assert sum(map(len, ubatches_of(case))) <= 2, case
    assert f'"sbatch":"{case.sbatch}"' in found.repro


def test_our_model_agrees_with_itself_and_states_the_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(batch, "of_sbatch", lambda *_: True)
    plan = FuzzPlan(targets=tuple(SPLITS), oracle="reference", cases=CASES)
    result = run_campaign("batch", plan, tmp_path, [])
    assert [v.status for v in result.verdicts] == ["agreed"] * 3
    for verdict in result.verdicts:
        assert verdict.detail["schedules"] == CASES
        assert min(verdict.detail["ubatches"], verdict.detail["order"]) > CASES


def test_the_worked_examples_are_the_first_cases() -> None:
    small, large, other, _ = (sbatch_schedule(0, n, "attention") for n in range(4))
    for case, lengths in (
        (small, [4, 4, 4, 1]),
        (large, [32, 32, 11]),
        (other, [32, 32, 9]),
    ):
        (ubatches,) = ubatches_of(case)
        assert list(map(len, ubatches)) == lengths
    assert ubatches_of(sbatch_schedule(0, 0, "recurrent")) == [[[1, 4, 2, 5], [6, 3]]]


@pytest.mark.parametrize("kind", SPLITS)
def test_cases_do_not_depend_on_an_unstable_sort(kind: str) -> None:
    for number in range(200):
        case = sbatch_schedule(5, number, kind)
        assert case == sbatch_schedule(5, number, kind) == schedule_from(case.text())
        for _, rows in case.steps:
            places = [(row[1], row[2]) for row in rows]
            assert len(set(places)) == len(places) or len(rows) <= SORTED_STABLY
            assert len({row[2] for row in rows}) < SORTED_STABLY
            assert kind != "pooled" or all(row[2][0] == 0 for row in rows)


def test_older_version_is_compared_only_in_its_splits() -> None:
    assert batch.of_sbatch("llama.cpp@0.3.8", "reference")
    assert batch.of_sbatch("reference", "llama.cpp@0.3.9")
    assert not batch.of_sbatch("llama.cpp@0.3.10", "reference")
    assert not batch.of_sbatch("llama.cpp", "reference")
    # both engines have a schedule, which is compared as a whole
    assert not batch.of_sbatch("llama.cpp@0.3.8", "llama.cpp")
    assert [has_sbatch(v) for v in ("0.2.90", "0.3.9.post1", "0.3.10", "1.0")] == [1, 1, 0, 0]


def test_kind_is_named_only_if_applicable() -> None:
    fuzzer = fuzzer_named("batch")
    fuzzer.check(FuzzPlan(targets=("pooled",), oracle="llama.cpp@0.3.8"))
    with pytest.raises(
        BadInput, match=r"'pooled' \(known: attention, window, recurrent, hybrid, yarn\)"
    ):
        fuzzer.check(FuzzPlan(targets=("pooled",)))
    with pytest.raises(BadInput, match=r"'window' \(known: attention, recurrent, pooled\)"):
        fuzzer.check(FuzzPlan(targets=("window",), oracle="llama.cpp@0.3.8"))


def test_field_that_only_one_engine_shows_is_not_a_difference() -> None:
    seen, shown = [None, 1, [[7, None, None, True]]], [True, 1, [[7, 3, [0], True]]]
    assert same([seen], [shown])
    assert same(None, shown)
    assert not same([seen], [[True, 2, shown[2]]])
    assert not same([seen], [[True, 1, [[7, 3, [0], False]]]])
    assert not same([seen], [shown, shown])
    words = in_words("ubatches", [seen], [[True, 2, shown[2]]])
    assert words == "ubatch 0: equal, 2 sets: 7@3/0!, expected an ubatch, 1 sets: 7@?/?!"
