"""Known facts about other GGUF parsers are still true, and a short fuzzing run finds no more."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.fields import KINDS
from lockstep.harness.adapters.parts.parsing import (
    NUMBER,
    SPARE_MEMORY,
    Parsed,
    pack_files,
    parse_answer,
)
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.fuzzers.gguf.findings import KnownFile, cause_of, known_files, refine_cause
from lockstep.harness.fuzzers.gguf.fuzzer import WAYS
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.report.jsonl import read_report

KNOWN = known_files()
SYMPTOMS = {"accepts", "refuses", "value", "crashes", "hangs", "memory"}
CASES = [(known, way) for known in KNOWN for way in known.ways]


@pytest.fixture(scope="module")
def sessions() -> Iterator[dict[str, Session]]:
    with ExitStack() as stack:
        runner = Runner()
        yield {
            name: stack.enter_context(runner.open(name, None, EXACT))
            for name in ("llama.cpp", "gguf-py", "reference")
        }


def ask(session: Session, raw: bytes, way: str) -> Parsed:
    outcome = session.ask("parse", *pack_files([raw]), way)
    assert isinstance(outcome, Answered), outcome
    return parse_answer(outcome.value, 1)


@pytest.mark.parametrize(("known", "way"), CASES, ids=[f"{known.id}-{way}" for known, way in CASES])
def test_known_finding_is_still_true(
    known: KnownFile, way: str, sessions: dict[str, Session]
) -> None:
    ours = ask(sessions["reference"], known.raw, "buffer")
    theirs = ask(sessions[known.component], known.raw, way)
    stage = f"{known.component} {way}"
    cause = cause_of(known.component, way, ours, theirs, 0, known.raw)
    over = f"{stage} no longer does so: take {known.id} out of harness/known"
    assert cause is not None, over
    causes = known.causes
    if known.symptom == "memory":  # a slow machine may reach the time limit first
        same = (other for other in KNOWN if other.component == known.component)
        causes = causes + [c for other in same for c in other.causes if c.symptom == "hangs"]
    assert refine_cause(cause, known.raw) in causes, over


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_entry_states_its_subject_and_report(known: KnownFile) -> None:
    assert set(known.ways) <= set(WAYS[known.component])
    assert known.symptom in SYMPTOMS
    assert known.symptom != "accepts" or known.kind in KINDS
    assert known.sentence.endswith(".")
    assert known.status.startswith(("reported", "not reported"))
    assert known.link.startswith("https://github.com/") or known.status.startswith("not reported")
    most = 256 if "load" not in known.ways else 1200  # bytes; a graph needs more before it fails
    assert len(known.raw) < most or known.case.startswith("fault ")


def test_entries_have_different_subjects() -> None:
    causes = [cause for known in KNOWN for cause in known.causes]
    assert len(set(causes)) == len(causes)
    assert len({known.id for known in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize("family", ["valid", "broken", "several", "mutated"])
def test_short_run_finds_only_known_differences(tmp_path: Path, family: str) -> None:
    result = run_campaign("gguf", FuzzPlan(targets=(family,), cases=800, seed=77), tmp_path, [])
    assert result.code == 0, [v.summary for v in result.verdicts if v.status != "agreed"]
    (agreed,) = (v for v in result.verdicts if v.status == "agreed")
    buffer, witness = (agreed.detail["stages"][s] for s in ("llama.cpp buffer", "gguf-py file"))
    assert buffer["asked"] == 800
    parted = 800 - buffer["both accept"] - buffer["both refuse"]
    assert witness["asked"] >= max(parted, 1)
    assert agreed.detail["peak"] < SPARE_MEMORY
    assert agreed.detail["found"] == {}
    told = {v.key.removeprefix("fuzz-gguf/") for v in result.verdicts if v.status == "excused"}
    assert told == set(agreed.detail["known"])
    assert len(read_report(result.folder / "report.jsonl")) == len(result.verdicts) + 2


def test_continued_run_prints_known_findings_once(tmp_path: Path) -> None:
    def told(folder: str, **what: Any) -> list[str]:
        plan = FuzzPlan(targets=("valid",), seed=77, **what)
        verdicts = run_campaign("gguf", plan, tmp_path / folder, []).verdicts
        return [v.key for v in verdicts if v.status == "excused"]

    whole, first = told("whole", cases=400), told("first", cases=200)
    rest = told("rest", start=200, cases=200, found=tuple(first))
    assert first
    assert sorted(first + rest) == sorted(whole)


def test_disabled_witness_is_not_asked(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("valid",), cases=50, oracle="reference", witness=False)
    result = run_campaign("gguf", plan, tmp_path, [])
    assert [v.detail["stages"] for v in result.verdicts] == [{}]
    assert read_report(result.folder / "report.jsonl")[0]["campaign"]["witness"] is False


def test_command_of_a_finding_reproduces_it(tmp_path: Path) -> None:
    raw = next(known.raw for known in KNOWN if known.symptom == "crashes")
    plan = FuzzPlan(targets=("given",), given=(raw,))
    result = run_campaign("gguf", plan, tmp_path, [])
    crashes = [v for v in result.verdicts if v.detail.get("symptom") == "crashes"]
    assert crashes
    assert crashes[0].repro.endswith(f"--hex {raw.hex()}")
    json.dumps(crashes[0].detail)


@pytest.mark.parametrize(
    ("ending", "peak", "symptom"),
    [("hung", 1 << 29, "hangs"), ("memory", 1 << 30, "hangs"), ("other", 1 << 29, "memory")],
)
def test_hanging_parser_is_known_for_either_limit(
    ending: str, peak: int, symptom: str, sessions: dict[str, Session]
) -> None:
    (known,) = (known for known in KNOWN if known.id == "gguf-py-hangs")
    ours = ask(sessions["reference"], known.raw, "buffer")
    endings = np.array([NUMBER[ending]], np.uint8)
    theirs = Parsed(endings=endings, digests=np.zeros(1, np.uint64), peaks=np.array([peak]))
    cause = cause_of("gguf-py", "file", ours, theirs, 0, known.raw)
    assert cause is not None
    assert cause.symptom == symptom
    assert (cause in known.causes) == (symptom == "hangs")


def test_excused_finding_says_why_before_its_bytes(tmp_path: Path) -> None:
    known = next(known for known in KNOWN if known.symptom == "crashes")
    plan = FuzzPlan(targets=("given",), given=(known.raw,))
    verdicts = run_campaign("gguf", plan, tmp_path, []).verdicts
    excused = [v.summary for v in verdicts if v.detail.get("known") == known.id]
    assert excused
    for summary in excused:
        why, _, _ = summary.partition(" bytes, ")
        assert f"known: {known.id}: {known.sentence.rstrip('.')}" in why
