"""A model with one NaN weight: neither the cache nor the products of llama.cpp's trace are
blamed."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, Answered, Request, Site
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import with_changed_weight, written

REQUEST = Request(batches=(Batch.of([1, 2, 3]), Batch.of([4], start=3)), capture=True)


@pytest.mark.parametrize("tensor", ["attn_q", "attn_k", "ffn_down"])
def test_nan_rows_leave_free_cells_untouched(
    tensor: str, models: Callable[[str], Path], tmp_path: Path
) -> None:
    name = f"blk.0.{tensor}.weight"
    model = with_changed_weight(models("f32"), tmp_path / "nan.gguf", name, 1, 0, math.nan)
    with Runner().open("llama.cpp", model, EXACT) as session:
        outcome = session.ask("evaluate", REQUEST)
    assert isinstance(outcome, Answered), outcome
    values = outcome.value.trace.values()
    weights = values[Site(step=0, layer=1, name="kq_soft_max")]
    assert weights.shape[-1] == 3
    assert np.isnan(weights).all()


def test_nan_in_a_block_does_not_accuse_ggml(tmp_path: Path) -> None:
    """A NaN becomes the step -128, and ggml's AVX2 code cannot change the sign of this step."""
    model = written(tmp_path, quant="Q8_0", n_ff=128)
    with GgufFile.open(model) as file:
        info = file.tensors["blk.0.ffn_up.weight"]
        at = file.data_offset + info.offset
    raw = bytearray(model.read_bytes())
    raw[at : at + 2] = np.float16(np.nan).tobytes()
    model.write_bytes(raw)
    found = verdicts_of(plan_for(model, oracle="llama.cpp", suites=("shadow",), n_tokens=8))
    assert {verdict.status for verdict in found} == {"agreed", "not-compared"}
    assert any("without a finite bound" in verdict.summary for verdict in found)
