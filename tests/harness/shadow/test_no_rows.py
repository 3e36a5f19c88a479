"""A batch without outputs: llama.cpp's last ops have no rows."""

from pathlib import Path

import numpy as np

from lockstep.engine.node import Operand
from lockstep.harness.records import DEFAULT
from lockstep.harness.shadow.judge import view_of
from lockstep.harness.shadow.models import make_variants
from tests.harness.check.test_check import plan_for, verdicts_of


def test_view_without_rows_needs_no_bytes() -> None:
    view = Operand(name="a", type="F32", ne=(4, 0), value=None, offset=16, nb=(4, 640))
    assert view_of(np.zeros(0, np.uint8), view).shape[-2:] == (0, 4)


def test_expert_model_is_compared_if_a_batch_has_no_outputs(tmp_path: Path) -> None:
    """After the selection of rows, this model has divisions and views."""
    (path,) = make_variants(["qwen3moe"], tmp_path)
    plan = plan_for(path, oracle="llama.cpp", suites=("logits",), settings=DEFAULT, n_tokens=32)
    (verdict,) = verdicts_of(plan)
    assert verdict.status == "agreed", verdict.summary
    assert any(way.startswith("for ") for way in verdict.detail["same"])
