"""`lockstep original` on the command line: exit codes, JSON, and a valid report."""

import json
from pathlib import Path

import pytest

from lockstep.harness.asking.downloads import CACHE
from lockstep.harness.report.jsonl import read_report
from tests.command_line import Lockstep, assert_refused
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import convert


def test_json_and_report_contain_the_difference(lockstep: Lockstep, tmp_path: Path) -> None:
    made = convert("gemma2", ck.write_checkpoint(tmp_path, "gemma2"))
    made.swap("blk.0.attn_k.weight", "blk.0.attn_v.weight")
    model = made.write(tmp_path / "made.gguf")
    options = ("--no-run", "--json", "--report", tmp_path / "reports")
    code, out, _ = lockstep("original", tmp_path, model, *options)
    found = json.loads(out)
    assert (code, found["exit_code"]) == (1, 1)
    assert [len(part["differences"]) for part in found["parts"]] == [0, 2, 0]
    assert found["parts"][1]["differences"][0]["detail"]["holds"] == "blk.0.attn_v.weight"
    rows = read_report(Path(found["report"]) / "report.jsonl")
    statuses = [row["status"] for row in rows if row["kind"] == "verdict"]
    assert sorted(statuses) == ["agreed", "agreed", "diverged", "diverged"]


def test_exit_codes_match_the_help(lockstep: Lockstep, tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama")
    model = convert("llama", values).write(tmp_path / "made.gguf")
    ask = ("original", tmp_path, model, "--no-run", "--report", tmp_path / "reports")
    assert lockstep(*ask).code == 0
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": ck.TEMPLATE}))
    assert lockstep(*ask).code == 3
    (tmp_path / "model.safetensors").unlink()
    assert_refused(lockstep(*ask), "safetensors")


def test_run_without_the_environment_is_reported_as_not_compared(
    lockstep: Lockstep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    model = convert("llama", ck.write_checkpoint(tmp_path, "llama")).write(tmp_path / "made.gguf")
    code, out, _ = lockstep("original", tmp_path, model, "--json", "--report", tmp_path / "reports")
    part = json.loads(out)["parts"][-1]
    assert (part["part"], part["compared"]) == ("run", 0)
    assert [each["reason"] for each in part["not_compared"]] == ["no-environment"]
    assert code == 0
