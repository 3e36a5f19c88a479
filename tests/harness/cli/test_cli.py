"""Results of commands that programs can read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.report.jsonl import read_report
from lockstep.harness.selftest.selftest import mutants
from lockstep.harness.selftest.tokens import wrong_tokenizers
from lockstep.harness.synth.builtin import BUILTIN
from tests.command_line import (
    OURSELVES,
    Lockstep,
)
from tests.models import builtin, with_changed_weight


def one_object(text: str) -> dict[str, Any]:
    """Return the JSON object in the text, which must not contain literals that JSON lacks."""
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(value, dict)
    assert text.count("\n") == 1
    return value


def test_check_prints_one_json_object_and_writes_a_complete_report(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    ending = lockstep(
        "check", "builtin:f32", *OURSELVES, "--json", "--steps", "4", "--report", tmp_path
    )
    summary = one_object(ending.out)
    assert (ending.code, summary["exit_code"], summary["divergences"]) == (0, 0, [])
    assert summary["counts"].keys() == {"agreed", "excused"}  # shadow judges llama.cpp only
    rows = read_report(Path(summary["report"]))
    assert rows[-1]["counts"] == summary["counts"]
    assert rows[0]["models"][0]["recipe"]["seed"] == BUILTIN["f32"].seed
    assert rows[0]["command"].startswith("lockstep")


def test_two_checks_leave_two_reports(lockstep: Lockstep, tmp_path: Path) -> None:
    args = ("check", "builtin:f32", *OURSELVES, "--suite", "metadata", "-q", "--report", tmp_path)
    before: dict[Path, bytes] = {}
    for n in (1, 2, 3):
        assert lockstep(*args).code == 0
        found = {path: path.read_bytes() for path in tmp_path.glob("*/report.jsonl")}
        assert len(found) == n
        assert before.items() <= found.items()
        before = found


def test_parallel_run_gives_the_same_verdicts(lockstep: Lockstep, tmp_path: Path) -> None:
    args = ("check", *OURSELVES, "--suite", "dequant", "--json", "-q", "--report", tmp_path)
    one, two = (one_object(lockstep(*args, "-j", n).out) for n in (1, 2))
    assert one["counts"] == two["counts"]
    a, b = (
        sorted((r["case"], r["summary"]) for r in read_report(Path(s["report"]))[1:-1])
        for s in (one, two)
    )
    assert a == b
    assert {case for case, _ in a} == {f"builtin:{name}" for name in BUILTIN}


def test_divergence_has_exit_code_1_and_a_repeating_command(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    model = builtin("f32", tmp_path)
    other = with_changed_weight(model, tmp_path / "o.gguf", "blk.1.attn_v.weight", 3, 4, 0.5)
    args = ("check", model, "--subject-model", other, *OURSELVES, "--suite", "trace")
    ending = lockstep(*args, "--report", tmp_path / "r", "-q")
    assert ending.code == 1
    assert "DIVERGENCE" in ending.out
    again = next(line for line in ending.out.splitlines() if "again: " in line)
    repeated = again.split("lockstep ", 1)[1].split()
    assert lockstep(*repeated, "--report", tmp_path / "r", "-q").code == 1
    said, _, place = ending.out.splitlines()[-1].partition("lockstep ")
    assert said == "find the place, with a proof: "
    assert lockstep(*place.split(), "-q").code == 1


def test_bisect_prints_one_json_object(lockstep: Lockstep, tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    other = with_changed_weight(model, tmp_path / "o.gguf", "blk.1.attn_v.weight", 3, 4, 0.5)
    rest = (*OURSELVES, "--json", "-q", "--report", tmp_path / "results")
    ending = lockstep("bisect", model, "--subject-model", other, *rest)
    found = one_object(ending.out)
    assert (ending.code, found["exit_code"], found["confirmed"]) == (1, 1, True)
    (culprit,) = found["culprits"]
    assert (culprit["site"], culprit["layer"], culprit["weight"]) == (
        *("Vcur", 1, "blk.1.attn_v.weight"),
    )
    assert culprit["positions"]["indices"] == [3]
    (report,) = (tmp_path / "results").glob("*/report.jsonl")
    _, first, proof, footer = read_report(report)
    assert (first["status"], first["detail"]["site"]) == ("diverged", "Vcur")
    assert proof["detail"]["bisection"]["proof"]["confirms"]
    assert footer["exit_code"] == 1
    assert "Vcur" in report.with_name("report.html").read_text()
    same = one_object(lockstep("bisect", model, *rest).out)
    assert (same["exit_code"], same["culprits"], same["confirmed"]) == (0, [], None)


def test_run_prints_one_json_object(lockstep: Lockstep) -> None:
    args = ("run", "builtin:f32", "--prompt", "Once", "-n", "5", "--engine", "reference")
    ending = lockstep(*args, "--json", "-q")
    answer = one_object(ending.out)
    assert ending.code == 0
    assert len(answer["ids"]) == 5
    assert answer["engine"] == "reference"


def test_tokens_decode_back_to_the_text(lockstep: Lockstep) -> None:
    text = "Once upon a\ttime"
    plain = ("tokenize", "builtin:f32", "--no-special")  # a BOS keeps the space, as in llama.cpp
    ids = lockstep(*plain, "--text", text).out
    assert all(isinstance(i, int) for i in json.loads(ids))
    assert lockstep(*plain, "--decode", "--text", ids).out == text + "\n"
    with_bos = lockstep("tokenize", "builtin:f32", "--text", text).out
    assert json.loads(with_bos) == [1, *json.loads(ids)]


def test_trace_is_written_with_its_index(lockstep: Lockstep, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    ending = lockstep("trace", "builtin:moe", "-o", tmp_path / "t", "--tokens", "3", "-q")
    assert ending.code == 0
    index = json.loads((tmp_path / "t" / "index.json").read_text())
    tensors = load_file(tmp_path / "t" / "tensors.safetensors")
    assert {row["key"] for row in index["tensors"]} == tensors.keys()
    for row in index["tensors"]:
        assert list(tensors[row["key"]].shape) == row["shape"]
        assert len(row["axes"].split(",")) == len(row["shape"])


def test_synth_reports_the_written_file(lockstep: Lockstep, tmp_path: Path) -> None:
    from lockstep.harness.report.header import sha256_of

    path = tmp_path / "m.gguf"
    ending = lockstep("synth", "-o", path, "--quant", "Q8_0", "--seed", "5", "--tied")
    assert ending.code == 0
    assert sha256_of(path) in ending.out
    assert lockstep("run", path, "--prompt", "x", "-n", "1", "--engine", "reference").code == 0


def test_selftest_lists_every_wrong_engine_with_its_mistake(lockstep: Lockstep) -> None:
    lines = lockstep("selftest", "--list").out.splitlines()
    wrong = [*mutants(), *wrong_tokenizers()]
    assert [line.split()[0] for line in lines] == [cls.name for cls in wrong]
    assert all(cls.mistake in line for cls, line in zip(wrong, lines, strict=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "norms"), "--only: no effect without another option"),
        (("--honest", "1", "--only", "norms"), "--only: no effect with --honest"),
        (("--sample", "3", "--catalogue"), "--sample: no effect with --catalogue"),
        (("--catalogue", "--diagnosis"), "--catalogue and --diagnosis: give only one of them"),
        (("--catalogue", "--only", "norm"), "no family 'norm' of wrong engines (near: norms"),
        (("--black-box", "--only", "qwen"), "no family or model 'qwen' of wrong engines"),
        (("--diagnosis", "--only", "norm"), "no family 'norm' of wrong engines (near: norms"),
    ],
)
def test_selftest_refuses_contradictory_options(
    lockstep: Lockstep, words: tuple[str, ...], said: str
) -> None:
    ending = lockstep("selftest", *words)
    assert ending.code == 2
    assert said in ending.err


# the output fails at the end, or at the first line
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_closes_the_output_early_is_not_an_error(unbuffered: str) -> None:
    listing = subprocess.Popen(
        [sys.executable, "-m", "lockstep", "synth", "--list"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    with listing.stderr:
        listing.stdout.close()  # before a line is written
        assert (listing.wait(60), listing.stderr.read()) == (141, "")
