"""Known divergences of foreign engines. They are well formed, each has a file that shows it, and
each excuses only its own engine."""

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
    has_facts,
)
from lockstep.harness.known.own import own_differences
from lockstep.harness.records import Verdict
from lockstep.harness.selftest.foreign_findings import ending_of, is_seen_in, text_of, write_case
from lockstep.harness.synth.gguf_writer import write_gguf

FINDINGS = foreign_findings()
ROPE = finding_named("tinygrad-rope-freqs")
LATIN = finding_named("hyllama-latin-1")


def verdict(suite: str, symptom: str = "value", **detail: object) -> Verdict:
    key = f"{suite}/{symptom}"
    return Verdict(suite=suite, case="m", status="diverged", summary="x", detail=detail, key=key)


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
    assert finding.version == engine.version  # findings must be reviewed for each new version
    assert finding.id.startswith(finding.engine)
    assert {*finding.suites} <= {suite.name for suite in suites_named(())}
    assert finding.suites
    assert all(finding.shows)
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
    said = verdict("logits")
    excused = excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", model)
    assert excused.status == "excused"
    assert is_seen_in(ROPE, excused)
    assert ROPE.sentence in excused.summary
    for engine, version in (("mlx", "mlx 0.14.0"), ("tinygrad", "tinygrad 0.15.0")):
        assert excused_if_foreign(said, engine, version, model) is said


@pytest.mark.parametrize(
    "said",
    [
        verdict("trace", site="l_out"),
        verdict("metadata"),
        replace(verdict("logits"), status="agreed"),
    ],
)
def test_other_place_other_suite_and_agreement_are_not_excused(said: Verdict, model: Path) -> None:
    assert excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", model) is said


def test_finding_excuses_only_files_that_contain_its_cause(tmp_path: Path) -> None:
    write_case(LATIN, tmp_path / "other.gguf")
    said = verdict("logits")
    same = excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", tmp_path / "other.gguf")
    assert same is said


def test_every_difference_of_a_verdict_must_be_known(model: Path) -> None:
    latin = {"what": "key", "ascii": False}
    other = {"what": "key", "ascii": True}

    def after(*rows: dict[str, object], total: int | None = None) -> str:
        n = len(rows) if total is None else total
        said = verdict("metadata", differences=list(rows), total=n)
        return excused_if_foreign(said, "hyllama", "hyllama 0.2.2", model).status

    assert after(latin) == "excused"
    assert after(latin, other) == "diverged"
    assert after(latin, total=2) == "diverged"  # the report does not show the second difference


def test_error_larger_than_the_findings_limit_is_not_excused(tmp_path: Path) -> None:
    finding = finding_named("mlx-half-precision")
    write_case(finding, tmp_path / "case.gguf")

    def after(actual: float) -> str:
        said = verdict("dequant", type="Q6_K", expected=2.0, actual=actual)
        return excused_if_foreign(said, "mlx", "mlx 0.32.4", tmp_path / "case.gguf").status

    assert after(2.0009) == "excused"
    assert after(2.01) == "diverged"


def test_known_crash_stays_a_crash_and_is_named(tmp_path: Path) -> None:
    finding = finding_named("tinygrad-freq-base")
    write_case(finding, tmp_path / "case.gguf")
    said = verdict("logits", "crashed", message="KeyError: 'llama.rope.freq_base'")
    said = replace(said, status="crashed")
    known = excused_if_foreign(said, "tinygrad", "tinygrad 0.14.0", tmp_path / "case.gguf")
    assert known.status == "crashed"
    assert is_seen_in(finding, known)


def test_unanswered_question_does_not_prove_a_finding_resolved() -> None:
    agreed = replace(verdict("metadata"), status="agreed")
    crashed = replace(verdict("logits"), status="crashed", summary="no usable devices")
    left_out = replace(verdict("logits"), status="not-compared")
    code, words = ending_of(ROPE, [agreed, crashed])
    assert code == 3
    assert "no usable devices" in words
    assert "clang" in words
    assert ending_of(ROPE, [left_out])[0] == ending_of(ROPE, [])[0] == 3
    assert ending_of(ROPE, [agreed, left_out])[0] == 1
    known = verdict("logits", known=f"{ROPE.id}: so")
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
    ("kinds", "status"),
    [(["BOS"], "excused"), (["BOS", "TOKENS"], "diverged"), (["CUT"], "diverged")],
)
def test_finding_of_a_missing_bos_excuses_no_other_difference(
    kinds: list[str], status: str, tmp_path: Path
) -> None:
    path = tmp_path / "case.gguf"
    write_case(finding_named("mistralrs-no-bos"), path)
    with GgufFile.open(path) as file:
        keys = {key: file.metadata[key] for key in file.metadata}
    keys["tokenizer.ggml.model"] = replace(keys["tokenizer.ggml.model"], data="gpt2")
    bpe = tmp_path / "bpe.gguf"  # another finding for other tokens exists for the kind llama
    write_gguf(bpe, keys, [])
    said = verdict("tokens", "encode", way="encode", kinds=[{"kind": kind} for kind in kinds])
    assert excused_if_foreign(said, "mistralrs", "mistralrs 0.9.5", bpe).status == status


@pytest.mark.parametrize(
    ("facts", "wanted", "is_one"),
    [
        ({"kind": "BOS"}, {"kind": ["CUT", "BOS"]}, True),
        ({"kind": "BOS"}, {"kind": "BOS", "way": "encode"}, False),
        ({"actual": float("nan")}, {"actual": float("nan")}, True),
        ({"stage": {"n": -1, "p": 2}}, {"stage": {"n": -1}}, True),
        ({"stage": {"n": 4}}, {"stage": {"n": -1}}, False),
        ({"message": "KeyError: 'a' in load"}, {"message": "KeyError: 'a'"}, True),
        ({"says": "KeyError: 'a' in load"}, {"says": "KeyError: 'a'"}, False),
    ],
)
def test_facts_are_matched_by_value_and_errors_by_their_words(
    facts: dict[str, object], wanted: dict[str, object], is_one: bool
) -> None:
    assert has_facts(facts, wanted) is is_one


def test_gemma_3_with_256_wide_heads_is_not_excused_for_its_scale(tmp_path: Path) -> None:
    finding, path = finding_named("transformers-gemma3-scale"), tmp_path / "case.gguf"
    write_case(finding, path)
    said = verdict("logits")
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
