"""Guided files: they reach every line of the reader, and find faults behind branches."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.parts import parsing
from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.fuzzers.gguf import guided as _gguf_guided
from lockstep.harness.fuzzers.gguf.faults import FAULTS
from lockstep.harness.fuzzers.gguf.fuzzer import GgufFuzzer
from lockstep.harness.fuzzers.gguf.grammar import alone, cases
from lockstep.harness.fuzzers.gguf.guided import complaint, files_kept, guided_round, seed_folder
from lockstep.harness.fuzzers.gguf.guided_reader import guard_reader
from lockstep.harness.fuzzers.gguf.reached import MODULES, find_reached
from lockstep.harness.report.jsonl import read_report
from tests.breaking_reader import WORDS
from tests.breaking_reader import GgufFile as Breaking

NOT_READING = {  # functions that are not part of parsing
    *("TensorInfo.shape", "TensorInfo.n_elements", "GgufFile.raw", "GgufFile.size"),
    *("GgufFile.open", "GgufFile.release", "GgufFile.close"),
    *("GgufFile.__enter__", "GgufFile.__exit__", "Entries.__contains__"),
}
guidance = pytest.mark.skipif(
    find_spec("atheris") is None, reason="no atheris for this Python: no guided file was made"
)
FIRST = alone("every-type")
PLAN = FuzzPlan(targets=("guided",), cases=300, oracle="reference")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    seed_folder(tmp_path / "kept", [b"a corpus file"], seed=1)
    return tmp_path / "kept"


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """Return a folder with a single start file, because libFuzzer reads several files in any
    order."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one/first.gguf").write_bytes(FIRST)
    return tmp_path / "one"


def made(family: str, n: int) -> Iterator[bytes]:
    yield from (case.raw for case in cases(0, family, 0, n))


# --- coverage ---------------------------------------------------------------------------------


def test_grammar_reaches_every_line_of_the_reader() -> None:
    files = [*map(alone, FAULTS), *made("valid", 300), *made("mutated", 700)]
    found = find_reached(files)
    assert found.never == ()
    assert set(found.not_called) == NOT_READING
    assert found.lines > 200


def test_unreached_line_is_named() -> None:
    found = find_reached([alone("every-type")])
    assert any(
        text.startswith("lockstep.engine.gguf.fields:") and "refuse(" in text
        for text in found.never
    )
    assert find_reached([]).lines == 0


# --- the folder -------------------------------------------------------------------------------


def test_folder_starts_with_each_fault_and_accepts_libfuzzers_names(folder: Path) -> None:
    files = [path.read_bytes() for path in files_kept(folder)]
    assert {*map(alone, FAULTS), b"a corpus file"} <= set(files)
    (folder / ("0" * 40)).write_bytes(b"GGUF")
    assert b"GGUF" in [path.read_bytes() for path in files_kept(folder)]


def test_other_files_of_the_folder_keep_their_names(folder: Path) -> None:
    (folder / "LICENSE").write_bytes(b"of somebody")
    assert b"of somebody" not in [path.read_bytes() for path in files_kept(folder)]
    assert (folder / "LICENSE").is_file()


def test_report_states_how_a_round_ended() -> None:
    words = ["INFO: x", "KeyError: 'behind'", "==3== ERROR: libFuzzer: fuzz target exited"]
    assert complaint(words, 77) == "KeyError: 'behind'"
    assert complaint(["INFO: x"], -9) == "libFuzzer ended with status -9: INFO: x"


# --- the reader under guidance ----------------------------------------------------------------


def test_guided_reader_may_raise_nothing_but_refusals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = guard_reader(GgufFile.from_bytes, lambda seconds: None)
    right(alone("bool-2"))
    with pytest.raises(KeyError, match=WORDS):
        guard_reader(Breaking.from_bytes, lambda seconds: None)(alone("every-type"))
    monkeypatch.setattr(parsing, "SPARE_MEMORY", -(1 << 20))
    with pytest.raises(MemoryError, match="for a file of 38"):
        right(alone("bool-2"))


@guidance
def test_file_that_breaks_the_reader_ends_a_round_and_is_kept(one: Path) -> None:
    modules = ["tests.breaking_reader", *MODULES]
    done = guided_round(one, 1000, 1, None, lambda text: None, modules)
    assert done.ended == f"KeyError: {WORDS!r}"
    (crash,) = (path for path in files_kept(one) if path.name.startswith("crash-"))
    with pytest.raises(KeyError, match=WORDS):
        Breaking.from_bytes(crash.read_bytes())


@guidance
def test_guidance_reaches_more_than_random_changes(one: Path) -> None:
    done = guided_round(one, 3000, 1, None, lambda text: None)
    assert done.branches > 2 * done.branches_before > 0
    by_chance = [case.raw for case in cases(0, "corpus", 0, 3000, [FIRST])]
    guided = [path.read_bytes() for path in files_kept(one)]
    assert len(guided) < 500
    assert lines(guided) > lines(by_chance) + 20


def lines(files: list[bytes]) -> int:
    return find_reached(files).lines


@guidance
def test_guided_run_ends_if_nothing_new_is_found(one: Path, tmp_path: Path) -> None:
    plan = replace(PLAN, keep=one)
    result = run_campaign("gguf", plan, tmp_path, [])
    rounds = [v.detail for v in result.verdicts if "branches" in v.detail]
    assert rounds[-1]["branches"] == rounds[-1]["branches_before"] > 100
    assert all(row["files"] >= PLAN.cases and row["ended"] == "" for row in rounds)
    assert all(a["branches"] <= b["branches"] for a, b in pairwise(rounds))
    (about,) = (v.detail for v in result.verdicts if "stages" in v.detail)
    assert about["stages"]["gguf-py file"]["asked"] == about["files"] >= 20
    assert result.code == 0, [v.summary for v in result.verdicts if v.status == "diverged"]
    assert read_report(result.folder / "report.jsonl")[0]["campaign"]["keep"] == str(plan.keep)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"keep": None}, "needs a folder"),
        ({"keep": Path("x"), "engine": "llama.cpp"}, "branches of our reader, not of 'llama.cpp'"),
    ],
)
def test_contradictory_guided_run_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        GgufFuzzer().check(replace(PLAN, **changes))


def test_missing_atheris_message_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gguf_guided, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="needs atheris: pip install"):
        GgufFuzzer().check(replace(PLAN, keep=Path("x")))
