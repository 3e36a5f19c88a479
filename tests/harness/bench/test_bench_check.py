"""`bench check`: how a check spends its time, with our own engine or another engine."""

from dataclasses import replace

import pytest

from lockstep.harness.bench.base import BenchPlan, bench_named
from lockstep.harness.bench.check import PhaseClock
from lockstep.harness.check.check import BadInput
from lockstep.harness.records import StageText

PLAN = BenchPlan(targets=("builtin:f32",))


def test_phases_of_a_check_add_up_to_its_time() -> None:
    said: list[str] = []
    plan = replace(PLAN, engine="honest:float64")
    rows = list(bench_named("check").run(plan, lambda what, text: said.append(text)))
    *phases, whole = ({name: 1 / rate for (name, _), rate in row.rates.items()} for row in rows)
    assert rows[-1].target == "f32: all of it"
    assert {"f32: logits | logits of both engines", "f32: trace | the subject's own run"} <= {
        row.target for row in rows
    }
    # a phase of less than a thousandth of a second counts as a thousandth
    more = sum(phase["seconds"] for phase in phases) - whole["seconds"]
    assert -1e-9 < more < 1e-3 * len(rows)
    assert "suite trace" in said


def test_bench_check_opens_the_named_engine() -> None:
    with pytest.raises(BadInput, match="no engine named 'honest:nosuch'"):
        list(bench_named("check").run(replace(PLAN, engine="honest:nosuch"), lambda *_: None))


def test_texts_that_differ_in_a_number_or_a_tensor_are_one_phase() -> None:
    clock = PhaseClock(say=lambda _: None)
    for text in (
        StageText.of_suite("dequant"),
        "tensor 1 of 2 blk.0.attn_q.weight",
        "tensor 2 of 2 x.weight",
    ):
        clock.phase(text)
    clock.stop()
    names = [row.target for row in clock.rows("m")]
    assert names == ["m: the start", "m: dequant", "m: dequant | tensor of", "m: all of it"]
