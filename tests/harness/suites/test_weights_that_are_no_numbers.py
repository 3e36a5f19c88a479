"""A weight that is NaN in the file is no difference, and is named: all logits may be NaN by it."""

from pathlib import Path

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin


def with_nan(model: Path, copy: Path, tensor: str) -> Path:
    with GgufFile.open(model) as file:
        at = file.data_offset + file.tensors[tensor].offset
    raw = bytearray(model.read_bytes())
    raw[at : at + 4] = np.float32(np.nan).tobytes()
    copy.write_bytes(raw)
    return copy


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    assert {v.status for v in verdicts_of(plan_for(model, suites=("dequant",)))} == {"agreed"}
    wrong = with_nan(model, tmp_path / "nan.gguf", "blk.1.ffn_up.weight")
    agreed, odd = verdicts_of(plan_for(wrong, suites=("dequant",)))
    assert (agreed.status, odd.status) == ("agreed", "excused")
    assert odd.summary.endswith("in both engines: 1 of blk.1.ffn_up.weight")


def test_one_engine_s_nan_is_a_difference(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    wrong = with_nan(model, tmp_path / "nan.gguf", "blk.1.ffn_up.weight")
    plan = plan_for(model, subject_model=wrong, suites=("dequant",))
    assert "diverged" in {v.status for v in verdicts_of(plan)}
