"""`bench run`: its rows and its promises. No test judges times."""

import json

import pytest
from typer.testing import CliRunner

from lockstep.harness.bench.base import BenchPlan, BenchRow, bench_named
from lockstep.harness.bench.run import OURS, THEIRS, RunBench
from lockstep.harness.cli.bench import app

PROMPT, STEPS = "m, prompt of 128", "m, 32 single tokens"


def promised(target: str, ours: float, theirs: float) -> list[bool]:
    row = BenchRow(target=target, rates={(OURS, 2): ours, (THEIRS, 2): theirs})
    return [promise.kept for promise in RunBench().promises([row])]


@pytest.mark.parametrize(
    ("target", "ours", "kept"),
    [(PROMPT, 50.0, True), (PROMPT, 49.0, False), (STEPS, 90.0, True), (STEPS, 89.0, False)],
)
def test_run_promises_half_of_prompt_speed_and_nine_tenths_of_token_speed(
    target: str, ours: float, kept: bool
) -> None:
    assert promised(target, ours, 100.0) == [kept]


def test_model_with_unmeasurably_fast_tokens_gets_no_promise() -> None:
    assert promised(STEPS, 1.0, 1000.0) == []


def test_prompt_and_single_tokens_are_measured_for_both_engines() -> None:
    pytest.importorskip("llama_cpp", reason="no llama_cpp: nothing was measured beside it")
    done = CliRunner().invoke(app, ["run", "builtin:q8_0", "--rounds", "1", "--json", "-q"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["unit"] == "tokens a second"
    assert [row["target"] for row in figures["rows"]] == [
        "q8_0, prompt of 128",
        "q8_0, 32 single tokens",
    ]
    assert all(row[f"{engine} x2"] > 0 for row in figures["rows"] for engine in (OURS, THEIRS))


def test_unknown_target_is_refused() -> None:
    with pytest.raises(Exception, match="no such file, and no built-in model"):
        list(bench_named("run").run(BenchPlan(targets=("no.gguf",)), lambda target, text: None))
