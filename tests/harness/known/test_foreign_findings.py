"""Known divergences of foreign engines are well formed, have a file that shows them, and excuse
only their own engine."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.check.check import suites_named
from lockstep.harness.cli import app
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.known.foreign import (
    Finding,
    excused_if_foreign,
    finding_named,
    foreign_findings,
)
from lockstep.harness.known.own import own_differences
from lockstep.harness.records import Verdict
from lockstep.harness.selftest.foreign_findings import ending_of, is_seen_in, text_of, write_case
from lockstep.harness.synth.gguf_writer import write_gguf

FINDINGS = foreign_findings()
ROPE = finding_named("tinygrad-rope-freqs")
LATIN = finding_named("hyllama-latin-1")


def verdict(suite: str, summary: str, **detail: object) -> Verdict:
    return Verdict(suite=suite, case="m", status="diverged", summary=summary, detail=detail)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model with the tensor that the finding is about."""
    write_case(ROPE, tmp_path / "rope.gguf")
    return tmp_path / "rope.gguf"


def test_findings_cover_four_projects() -> None:
    assert len(FINDINGS) >= 6
    assert len({each.engine for each in FINDINGS}) >= 4
    assert len({each.id for each in FINDINGS}) == len(FINDINGS)


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_finding_states_its_subject_place_and_report(finding: Finding) -> None:
    engine = ENGINES[finding.engine]
    assert finding.version == engine.version  # of another version it is to be looked at anew
    assert finding.id.startswith(finding.engine)
    assert {*finding.suites} <= {suite.name for suite in suites_named(())}
    assert finding.suites
    re.compile(finding.says)
    assert finding.sentence.endswith(".")
    assert finding.cause.endswith(".")
    assert finding.status.startswith(("reported", "not reported: "))
    assert finding.link.startswith("https://github.com/") or not finding.link


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_finding_has_a_small_file_that_shows_it(finding: Finding, tmp_path: Path) -> None:
    path = tmp_path / "case.gguf"
    write_case(finding, path)
    with GgufFile.open(path) as file:
        assert finding.applies(file)
        assert not {*finding.without} & {*file.metadata}
    assert path.stat().st_size < 2 << 20


def test_finding_is_excused_only_for_its_engine_and_version(model: Path) -> None:
    said = verdict("logits", "3 of 9 logits differ; worst at position 2")
    excused = excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", model)
    assert excused.status == "excused"
    assert is_seen_in(ROPE, excused)
    assert ROPE.sentence in excused.summary
    for engine, version in (("mlx", "mlx 0.14.0"), ("tinygrad", "tinygrad 0.15.0")):
        assert excused_if_foreign(said, engine, version, model) is said


@pytest.mark.parametrize(
    "said",
    [
        verdict("trace", "l_out-0 = ADD: 3 of 9 elements off"),
        verdict("metadata", "3 of 9 logits differ"),
        replace(verdict("logits", "3 of 9 logits differ"), status="agreed"),
    ],
)
def test_other_place_other_suite_and_agreement_are_not_excused(said: Verdict, model: Path) -> None:
    assert excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", model) is said


def test_finding_excuses_only_files_that_contain_its_cause(tmp_path: Path) -> None:
    write_case(LATIN, tmp_path / "other.gguf")
    said = verdict("logits", "3 of 9 logits differ")
    same = excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", tmp_path / "other.gguf")
    assert same is said


def test_every_difference_of_a_verdict_must_be_known(model: Path) -> None:
    latin = {"text": "key 'a', element 2: expected '▁', got 'â\\x96\\x81'"}
    other = {"text": "key 'b': expected ('U32', 7), got ('', 8)"}

    def after(*rows: dict[str, str], total: int | None = None) -> str:
        n = len(rows) if total is None else total
        said = verdict("metadata", "read differently", differences=list(rows), total=n)
        return excused_if_foreign(said, "hyllama", "hyllama 0.2.2", model).status

    assert after(latin) == "excused"
    assert after(latin, other) == "diverged"
    assert after(latin, total=2) == "diverged"  # the second was not told


def test_error_larger_than_the_findings_limit_is_not_excused(tmp_path: Path) -> None:
    finding = finding_named("mlx-half-precision")
    write_case(finding, tmp_path / "case.gguf")

    def after(actual: float) -> str:
        text = "a.weight (Q6_K): 5 weights differ"
        said = verdict("dequant", text, expected=2.0, actual=actual)
        return excused_if_foreign(said, "mlx", "mlx 0.32.4", tmp_path / "case.gguf").status

    assert after(2.0009) == "excused"
    assert after(2.01) == "diverged"


def test_known_crash_stays_a_crash_and_is_named(tmp_path: Path) -> None:
    finding = finding_named("tinygrad-freq-base")
    write_case(finding, tmp_path / "case.gguf")
    text = "tinygrad crashed in evaluate: KeyError: 'llama.rope.freq_base'"
    said = replace(verdict("logits", text), status="crashed")
    known = excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", tmp_path / "case.gguf")
    assert known.status == "crashed"
    assert is_seen_in(finding, known)


def test_unanswered_question_does_not_prove_a_finding_resolved() -> None:
    agreed = replace(verdict("metadata", "all of it"), status="agreed")
    crashed = replace(verdict("logits", "tinygrad failed: no usable devices"), status="crashed")
    left_out = replace(verdict("logits", "it cannot"), status="not-compared")
    code, words = ending_of(ROPE, [agreed, crashed])
    assert code == 3
    assert "no usable devices" in words
    assert "clang" in words
    assert ending_of(ROPE, [left_out])[0] == ending_of(ROPE, [])[0] == 3
    assert ending_of(ROPE, [agreed, left_out])[0] == 1
    known = replace(verdict("logits", "x"), detail={"known": f"{ROPE.id}: so"})
    assert ending_of(ROPE, [crashed, known]) == (0, "still true")


def test_finding_text_has_its_reproducing_commands(tmp_path: Path) -> None:
    text = text_of(ROPE)
    assert text.startswith(f"# {ROPE.sentence}")
    assert "    lockstep engine add tinygrad\n" in text
    assert "    lockstep finding tinygrad-rope-freqs --run\n" in text
    assert "--engine tinygrad --suite logits --suite decode --suite trace" in text
    path = tmp_path / "case.gguf"
    said = CliRunner().invoke(app, ["finding", ROPE.id, "-o", str(path)])
    assert said.exit_code == 0
    assert path.is_file()


def test_command_lists_all_findings_and_refuses_unknown_ids() -> None:
    said = CliRunner().invoke(app, ["finding"])
    known = [*own_differences(), *FINDINGS]
    assert len(said.stdout.splitlines()) == len(known)
    assert all(each.id in said.stdout for each in known)
    with pytest.raises(Unsupported, match=r"no finding named 'x' \(near"):
        finding_named("x")


@pytest.mark.parametrize("options", [["--run"], ["-o", "case.gguf"]])
def test_finding_command_without_a_finding_is_refused(options: list[str]) -> None:
    assert CliRunner().invoke(app, ["finding", *options]).exit_code == 2


def test_missing_folder_is_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        app(["finding", LATIN.id, "-o", str(tmp_path / "no" / "case.gguf")])
    assert end.value.code == 2
    assert f"{tmp_path / 'no'} is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("got", "expected", "status"),
    [
        ("[415, 9]", "[1, 415, 9]", "excused"),
        ("[]", "[1]", "excused"),
        ("[415]", "[1, 415, 9]", "diverged"),
        ("[415, 9]", "[1, 415, 90]", "diverged"),
        ("[415, 10]", "[1, 415, 9]", "diverged"),
        ("[1, 415, 9]", "[1, 415, 10]", "diverged"),
    ],
)
def test_finding_of_a_missing_bos_excuses_no_other_difference(
    got: str, expected: str, status: str, tmp_path: Path
) -> None:
    path = tmp_path / "case.gguf"
    write_case(finding_named("mistralrs-no-bos"), path)
    with GgufFile.open(path) as file:
        keys = {key: file.metadata[key] for key in file.metadata}
    keys["tokenizer.ggml.model"] = replace(keys["tokenizer.ggml.model"], data="gpt2")
    bpe = tmp_path / "bpe.gguf"  # of a kind llama any other tokens are known as well
    write_gguf(bpe, keys, [])
    said = verdict("tokens", f"b'upon' gives {got}, expected {expected}")
    assert excused_if_foreign(said, "mistralrs", "mistralrs 0.9.5", bpe).status == status


def test_gemma_3_with_heads_of_256_is_not_excused_for_its_scale(tmp_path: Path) -> None:
    finding, path = finding_named("transformers-gemma3-scale"), tmp_path / "case.gguf"
    write_case(finding, path)
    said = verdict("logits", "3 of 9 logits differ")
    assert excused_if_foreign(said, "transformers", "transformers 5.23.0", path).status == "excused"
    with GgufFile.open(path) as file:
        keys = {key: file.metadata[key] for key in file.metadata}
    keys["gemma3.attention.key_length"] = replace(keys["gemma3.attention.key_length"], data=256)
    write_gguf(tmp_path / "usual.gguf", keys, [])
    usual = tmp_path / "usual.gguf"
    assert excused_if_foreign(said, "transformers", "transformers 5.23.0", usual) is said


def test_finding_about_a_default_needs_a_file_without_the_key(tmp_path: Path) -> None:
    finding, path = finding_named("mistralrs-no-bos"), tmp_path / "case.gguf"
    write_case(finding, path)
    with GgufFile.open(path) as file:
        keys = {key: file.metadata[key] for key in file.metadata}
    write_gguf(tmp_path / "says.gguf", keys | {finding.lacks: ("BOOL", True)}, [])
    for name, applies in (("case.gguf", True), ("says.gguf", False)):
        with GgufFile.open(tmp_path / name) as file:
            assert finding.applies(file) is applies
