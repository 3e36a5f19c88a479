"""A model with one weight that is NaN: llama.cpp's trace is shown, and its cache is not blamed."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, Answered, Request, Site
from tests.models import with_changed_weight

REQUEST = Request(batches=(Batch.of([1, 2, 3]), Batch.of([4], start=3)), capture=True)


@pytest.mark.parametrize("tensor", ["attn_q", "attn_k", "ffn_down"])
def test_rows_that_are_nan_throughout_reach_into_no_free_cell(
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
