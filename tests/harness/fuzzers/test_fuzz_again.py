"""The command in each finding of a fuzzer reproduces the finding."""

import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.cli import app
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.fuzzers.gguf.grammar import alone
from lockstep.harness.mutants.tokenizers import WRONG as TOKENIZERS
from lockstep.harness.records import Verdict
from lockstep.harness.report.jsonl import read_report
from tests.wrong_memories import WRONG as MEMORIES
from tests.wrong_readers import wrong

LONG = 3000
Found = Callable[..., list[Verdict]]
Again = Callable[[Verdict], tuple[int | None, set[str]]]


class Breaks(Reference):
    """A decoder that breaks on a long file, on a block, and on a tilde."""

    name = "breaks"

    @staticmethod
    def open_file(raw: bytes) -> GgufFile:
        if len(raw) > LONG:
            raise TypeError("a long file")
        return GgufFile.from_bytes(raw)

    def dequantize(self, type_name: str, raw: Any) -> Any:
        if raw.any():
            raise RuntimeError("a block")
        return super().dequantize(type_name, raw)

    def tokenize(self, texts: Any, **flags: Any) -> list[list[int]]:
        if any(b"~" in text for text in texts):
            raise RuntimeError("a tilde")
        return super().tokenize(texts, **flags)


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Breaks, *(row.engine for row in MEMORIES.values())):
        monkeypatch.setitem(Adapter.family, cls.name, cls)


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """Return the findings of a small campaign without llama.cpp."""

    def run(fuzzer: str, *targets: str, **plan: Any) -> list[Verdict]:
        made = FuzzPlan(**{"targets": targets, "oracle": "reference", "seed": 3, **plan})
        verdicts = run_campaign(fuzzer, made, tmp_path / "first", ["lockstep"]).verdicts
        return [verdict for verdict in verdicts if verdict.key]

    return run


@pytest.fixture
def again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Again:
    """Run the command of a finding. Return its exit code and its findings."""

    def run(verdict: Verdict) -> tuple[int | None, set[str]]:
        lockstep, *words = shlex.split(verdict.repro)
        assert lockstep == "lockstep"
        folder = tmp_path / "again"
        with pytest.raises(SystemExit) as end:
            app([*words, "--quiet", "--report", str(folder)])
        out, err = capfd.readouterr()
        (report,) = folder.glob("*/report.jsonl")
        keys = {str(row["key"]) for row in read_report(report) if row["kind"] == "verdict"}
        assert err == "", (words, out)
        assert isinstance(end.value.code, int | None)
        return end.value.code or 0, keys

    return run


def long_file(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "a file.gguf"
    path.write_bytes(alone("key-65535")[: 2 * LONG])
    return path


def shows(again: Again, verdict: Verdict) -> None:
    code, keys = again(verdict)
    assert code == (0 if verdict.status == "excused" else exit_code([verdict]))
    assert verdict.key in keys


# --- files ------------------------------------------------------------------------------------


def test_small_file_finding_is_reproduced(found: Found, again: Again) -> None:
    (verdict,) = found("gguf", "given", given=(alone("bool-2"),))
    assert verdict.status == "excused"  # gguf-py accepts any byte as a bool
    shows(again, verdict)


def test_fault_with_another_verdict_than_the_table_is_reproduced(
    found: Found, again: Again
) -> None:
    with wrong("takes 13 for a type of value"):
        made = found("gguf", "broken", cases=300)
        verdict = next(v for v in made if v.key == "fuzz-gguf/table/refuses/value-type-13")
        shows(again, verdict)


@pytest.mark.parametrize("hexed", [False, True])
def test_finding_in_a_long_user_file_is_reproduced(
    hexed: bool, found: Found, again: Again, tmp_path: Path
) -> None:
    path = long_file(tmp_path / "mine")
    own: dict[str, Any] = {"given": (path.read_bytes(),)} if hexed else {"files": (path,)}
    (verdict,) = found("gguf", "given", engine="breaks", **own)
    assert ("--hex" if hexed else str(path)) in verdict.repro
    assert hexed or str(path) in verdict.summary
    shows(again, verdict)


def test_long_corpus_file_is_reproduced(found: Found, again: Again, tmp_path: Path) -> None:
    folder = long_file(tmp_path / "a corpus").parent
    (verdict,) = found("gguf", "corpus", engine="breaks", corpus=folder, cases=2, witness=False)
    assert {"--corpus", str(folder), "--no-witness"} <= {*shlex.split(verdict.repro)}
    shows(again, verdict)


@pytest.mark.skipif(find_spec("atheris") is None, reason="no atheris: no guided round was run")
def test_guided_round_is_reproduced(found: Found, tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("guided",), oracle="reference", cases=200, keep=tmp_path / "kept")
    first, *_ = run_campaign("gguf", plan, tmp_path / "first", ["lockstep"]).verdicts
    words = shlex.split(first.repro)
    assert words[words.index("--guided") + 1] == str(plan.keep)
    with pytest.raises(SystemExit) as end:
        app([*words[1:], "--quiet", "--report", str(tmp_path / "again")])
    assert end.value.code in (0, None)


@pytest.mark.parametrize("own", [{"given": (b"GGUF",)}, {"cases": 3}])
def test_parser_that_cannot_be_asked_is_reproduced(
    own: dict[str, Any], again: Again, tmp_path: Path
) -> None:
    target = "given" if "given" in own else "valid"
    plan = FuzzPlan(targets=(target,), oracle="reference", engine="gguf-py", **own)
    (verdict,) = run_campaign("gguf", plan, tmp_path / "first", ["lockstep"]).verdicts
    assert verdict.status == "not-compared"
    shows(again, verdict)


# --- blocks, texts, schedules -------------------------------------------------------------------


def test_block_finding_is_reproduced(found: Found, again: Again) -> None:
    (verdict,) = found("quants", "Q8_0", engine="mutant:q8-0-unsigned", cases=2000)
    shows(again, verdict)


def test_users_block_that_kills_an_engine_is_reproduced(found: Found, again: Again) -> None:
    (verdict,) = found("quants", "Q8_0", engine="breaks", given=(b"\1" * 34,))
    assert verdict.status == "crashed"
    shows(again, verdict)


@pytest.mark.parametrize("name", ["mutant:bos-doubled", "breaks"])
def test_text_finding_is_reproduced(name: str, found: Found, again: Again) -> None:
    kind = TOKENIZERS[name].shows_on if name in TOKENIZERS else "llama"
    verdict = found("tokens", f"builtin:{kind}", engine=name, cases=300)[0]
    shows(again, verdict)


def test_finding_in_a_users_text_is_reproduced(
    found: Found, again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Reference.detokenize
    monkeypatch.setattr(Breaks, "detokenize", lambda *a, **k: [t[:-1] for t in right(*a, **k)])
    verdict = found("tokens", "builtin:llama", engine="breaks", given=(b"ab",))[0]
    assert "/decode/" in verdict.key
    shows(again, verdict)


def test_schedule_finding_is_reproduced(found: Found, again: Again) -> None:
    verdict = found("batch", "attention", engine="forgets-to-shift", cases=30, start=1)[0]
    shows(again, verdict)
