"""Damaged state files as JSON, the symptoms of answers, and the commands."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lockstep.harness.adapters.parts.parsing import (
    ACCEPTED,
    CRASHED,
    HUNG,
    Parsed,
    answer_of,
    parse_answer,
)
from lockstep.harness.adapters.parts.reference_restore import restore_each
from lockstep.harness.adapters.parts.restoring import (
    CELLS_STAY,
    CLEAN,
    REFUSED_STATE,
    STUCK,
)
from lockstep.harness.check.check import BadInput
from lockstep.harness.cli import app
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named
from lockstep.harness.fuzzers.gguf.grammar import numbers_of
from lockstep.harness.fuzzers.states.damage import StateCase, state_case, state_case_from
from lockstep.harness.fuzzers.states.findings import (
    KnownState,
    StateCause,
    entry_for,
    state_cause,
)
from lockstep.harness.fuzzers.states.saved import SavedBase, base_of
from lockstep.harness.synth.small import SMALL
from tests.engine.states.test_state_files import FILES

RIGHT = 77  # digest of the unchanged file


class Files:
    """Saved states that need no engine."""

    def base(self, base: str, stranger: str = "") -> SavedBase:
        return base_of(FILES["window" if stranger else "attention"])


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], FILES["attention"]),
        ([["cut", 20]], FILES["attention"][:20]),
        ([["set", 4, "0b"]], FILES["attention"][:4] + b"\x0b" + FILES["attention"][5:]),
        ([["insert", 0, "ff"]], b"\xff" + FILES["attention"]),
        ([["remove", 0, 2], ["cut", 3]], FILES["attention"][2:5]),
        ([["stranger", "other-model"]], FILES["window"]),
    ],
)
def test_edits_produce_a_file(edits: list[list[object]], expected: bytes) -> None:
    case = state_case_from(json.dumps({"base": "one", "edits": edits}).encode())
    assert case.raw(Files()) == expected  # type: ignore[arg-type]
    assert state_case_from(case.text().encode()) == case


@pytest.mark.parametrize(
    "text",
    [
        b"[",
        b"[]",
        b'{"base":"none","edits":[]}',
        b'{"base":"one","edits":[["cut",-1]]}',
        b'{"base":"one","edits":[["cut",1.5]]}',
        b'{"base":"one","edits":[["set",1,"zz"]]}',
        b'{"base":"one","edits":[["stranger","nobody"]]}',
        b'{"base":"one","edits":[[]]}',
        b'{"base":"one","edits":[["remove",1,9999999]]}',
    ],
)
def test_malformed_case_is_refused(text: bytes) -> None:
    with pytest.raises(BadInput):
        state_case_from(text)


@pytest.mark.parametrize("name", ["attention", "hybrid", "sequence of states", "nothing kept"])
def test_drawn_cases_are_repeatable_and_mostly_damaged(name: str) -> None:
    base = base_of(FILES[name])

    def drawn() -> list[StateCase]:
        return [state_case(i, "one", d, base) for i, d in enumerate(numbers_of(5, name, 0, 300))]

    cases = drawn()
    assert cases == drawn()
    assert sum(not case.edits for case in cases) < 20
    names = {edit[0] for case in cases for edit in case.edits}
    assert names == {"cut", "set", "insert", "remove", "stranger"}


def test_regions_name_the_damaged_numbers() -> None:
    base = base_of(FILES["sequence"])
    last = base.values[-1].stop - 1
    edits = (("set", 4, "00"), ("set", last, "00"), ("cut", 9))
    assert StateCase(0, "one", edits).regions(base) == "cut+values+version"


# --- odd files ------------------------------------------------------------------------------------


def answers(rows: Sequence[tuple[str, int]], words: str = "") -> Parsed:
    found = answer_of([(ending, digest, -1) for ending, digest in rows], {0: words})
    return parse_answer(found, len(rows))


TAKEN, REFUSED = (ACCEPTED, 0), (REFUSED_STATE, 0)


@pytest.mark.parametrize(
    ("mine", "theirs", "symptom"),
    [
        (TAKEN, (ACCEPTED, RIGHT), None),
        (REFUSED, (REFUSED_STATE, CLEAN), None),
        (TAKEN, (REFUSED_STATE, CLEAN), "refuses"),
        (REFUSED, (ACCEPTED, RIGHT), "accepts"),
        (REFUSED, (REFUSED_STATE, CELLS_STAY), "keeps-cells"),
        (TAKEN, (ACCEPTED, STUCK), "stuck"),
        (TAKEN, (ACCEPTED, 5), "changes"),
        (REFUSED, (CRASHED, 0), "crashes"),
        (REFUSED, (HUNG, 0), "hangs"),
        (TAKEN, (CRASHED, 0), "refuses"),
        ((CRASHED, 0), (REFUSED_STATE, CLEAN), "dies"),
    ],
)
def test_answers_have_a_symptom(
    mine: tuple[str, int], theirs: tuple[str, int], symptom: str | None
) -> None:
    found = state_cause(answers([mine], "count: why"), answers([theirs]), 0, RIGHT, "pos")
    assert (found and found.symptom) == symptom


def entry(symptom: str, *kinds: str) -> KnownState:
    rest = dict.fromkeys(("id", "component", "version", "case", "sentence", "status", "link"), "")
    where = {"ways": ("context",), "memories": ("window",)}
    return KnownState(**rest, **where, symptom=symptom, kinds=kinds)


def test_known_entries_must_cover_every_damaged_region() -> None:
    known = [entry("changes", "values"), entry("changes", "pos"), entry("stuck", "row")]
    both, other = StateCause("changes", "pos+values"), StateCause("changes", "pos+row")
    assert entry_for(known, both, "context", "window") == known[1]
    assert entry_for(known, other, "context", "window") is None
    assert entry_for(known, both, "sequence", "window") is None


def test_reader_that_dies_on_a_file_is_reported() -> None:
    def judge(raw: bytes) -> str:
        return "" if raw else str(struct.unpack("<I", raw))

    found = parse_answer(restore_each(judge, [b"", b"x"]), 2)
    assert [found.ending(i) for i in (0, 1)] == [CRASHED, ACCEPTED]
    assert np.array_equal(found.digests, [0, 0])


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        FuzzPlan(targets=("context",)),
        FuzzPlan(oracle="reference"),
        FuzzPlan(given=(b'{"base":"one","edits":[]}',)),
        FuzzPlan(targets=("context-window",), given=(b"{}",)),
    ],
)
def test_contradictory_plan_is_refused(plan: FuzzPlan) -> None:
    with pytest.raises(BadInput):
        fuzzer_named("states").check(plan)


@pytest.mark.parametrize(
    ("name", "memory", "code"),
    [("attention", "", 0), ("attention", "attention", 0), ("attention", "window", 1), ("", "", 2)],
)
def test_state_command_exit_code_depends_on_the_fit(
    name: str, memory: str, code: int, tmp_path: Path
) -> None:
    path, model = tmp_path / "state", tmp_path / "model.gguf"
    path.write_bytes(FILES.get(name, b"nothing"))
    if memory:
        SMALL[memory](model)
    words = ["state", str(path), "--json", *(["--model", str(model)] if memory else [])]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code
    if code < 2:
        found = json.loads(result.stdout)
        assert (found["kind"], found["tokens"], found["fits"]) == (
            "context", 3, None if not memory else code == 0
        )  # fmt: skip
        assert [row["name"] for row in found["parts"][0]["rows"]] == ["k", "v"]
