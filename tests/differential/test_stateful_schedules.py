"""Schedules of Hypothesis on llama.cpp and on our engine; tests/schedule_machine.py has the
rules."""

from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.batch.judge import Judge
from lockstep.harness.records import EXACT
from lockstep.harness.synth.small import SMALL
from tests.schedule_machine import examples, machine_for


@pytest.mark.parametrize("kind", SMALL)
def test_llama_cpp_and_our_model_of_memory_agree(kind: str, tmp_path: Path) -> None:
    path, runner = tmp_path / "small.gguf", Runner()
    SMALL[kind](path)
    with (
        runner.open("llama.cpp", path, EXACT) as oracle,
        runner.open("reference", path, EXACT) as subject,
    ):
        judge = Judge(oracle, subject)
        run_state_machine_as_test(machine_for(kind, judge, fills=True), settings=examples(15))
    assert judge.counts["ubatches"] > 40
    assert judge.counts["splitting"] > 20
    assert judge.counts["neighbours"] > 5
