"""A long run of clean cases can be interrupted and continued."""

from pathlib import Path

import pytest

from lockstep.harness.check.check import BadInput
from lockstep.harness.selftest import clean_cases
from lockstep.harness.selftest.clean_cases import TriedCase, clean_results


def made(seeds: list[int], seed: int) -> TriedCase:
    seeds.append(seed)
    wrong = ("logits: far off",) if seed == 3 else ()
    return TriedCase(seed=seed, case=f"clean:{seed}", code=len(wrong), wrong=wrong)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that records the seeds of the cases that were run."""
    seeds: list[int] = []
    monkeypatch.setattr(clean_cases, "try_clean", lambda seed: made(seeds, seed))
    return seeds


def test_honest_engine_that_chooses_another_expert_is_not_accused() -> None:
    """The router has a near tie in one of 35 rows, and some honest runs also choose the other
    expert."""
    assert not clean_cases.try_clean(20963).alarm


def test_stored_case_is_not_run_again_and_counts(tmp_path: Path, run: list[int]) -> None:
    file = tmp_path / "clean.jsonl"
    first = list(clean_results(range(2, 5), None, file))
    again = list(clean_results(range(6), None, file))
    assert run == [2, 3, 4, 0, 1, 5]
    assert again[:3] == first
    assert [tried.seed for tried in again if tried.alarm] == [3]


def test_interrupted_run_keeps_its_results(tmp_path: Path, run: list[int]) -> None:
    file = tmp_path / "clean.jsonl"
    cases = clean_results(range(4), None, file)
    next(cases)
    next(cases)
    cases.close()
    list(clean_results(range(4), None, file))
    assert run == [0, 1, 2, 3]


def test_all_cases_are_run_without_a_file(run: list[int]) -> None:
    assert [tried.case for tried in clean_results(range(2))] == ["clean:0", "clean:1"]
    assert run == [0, 1]


@pytest.mark.parametrize("text", ["{", '{"seed": 1}', "[]", "1"])
def test_unrelated_file_is_one_clear_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "clean.jsonl"
    file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"clean\.jsonl, line 1: not a result of this command"):
        list(clean_results(range(1), None, file))
