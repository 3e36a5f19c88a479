"""Matrices of F16 that a build with AMX does not lay out for it."""

from pathlib import Path

import pytest

from lockstep.engine.activations.base import AMX
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import DEFAULT, Answered
from lockstep.harness.runs.run import Listener
from lockstep.harness.runs.shadow import ShadowPlan, run_shadow
from lockstep.harness.shadow.batches import Work


@pytest.mark.parametrize("variant", ["bitnet", "grovemoe"])
def test_differences_of_amx_builds_are_known(variant: str, tmp_path: Path) -> None:
    """BitNet's output matrix is tied, and GroveMoE's experts have an unusual name. With an AMX
    build, both were once called wrong."""
    with Runner().open("llama.cpp", None, DEFAULT) as session:
        info = session.ask("describe")
    assert isinstance(info, Answered)
    if AMX not in info.value.generic:
        pytest.skip("this llama.cpp does not use AMX: not compared")
    work = Work(tokens=4)
    plan = ShadowPlan(
        case=variant, model=None, variant=variant, quant="F16", settings=DEFAULT, work=work
    )
    assert run_shadow([plan], tmp_path, ["lockstep", "shadow"], None, Listener()).code == 0
