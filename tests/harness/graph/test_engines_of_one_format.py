"""An engine that uses one format of activations for all weights, in a whole `check`."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.activations.base import GENERIC
from lockstep.engine.activations.q8_0 import Q8_0Activations
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import written


class InQ8_0(Mirror):
    def activations(self, x: F32, weight: Weight) -> F64:
        if not is_in_blocks(weight.format):
            return super().activations(x, weight)
        return self.left(x)

    def left(self, x: F32) -> F64:
        return Q8_0Activations.convert(x, GENERIC).values

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


class Truncating(InQ8_0):
    def left(self, x: F32) -> F64:
        blocks = x.reshape(*x.shape[:-1], -1, 32)
        scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        kept = scales.astype(np.float16).astype(np.float64)
        with np.errstate(all="ignore"):
            steps = np.where(scales == 0, 0, np.trunc(blocks / scales))
        return np.asarray(steps * kept).reshape(x.shape)


class WithoutFormat(InQ8_0):
    def left(self, x: F32) -> F64:
        return x.astype(np.float64)


class OneRow(InQ8_0):
    """An engine that doubles row 3 of one product."""

    def linear(self, x: F32, weight: Weight) -> F32:
        out = super().linear(x, weight)
        if weight.name == "blk.1.ffn_up.weight":
            out[..., 3] *= 2
        return out


class OneRowWithoutFormat(OneRow, WithoutFormat):
    """The same wrong engine, without a format."""


class Honest(Reference, name="one format: blocks of Q8_0"):
    """An engine with a single kernel, like llama.cpp on GPUs."""

    ops = InQ8_0


class Wrong(Reference, name="one format: blocks of Q8_0, cut off"):
    ops = Truncating


class WrongRow(Reference, name="one format: blocks of Q8_0, a wrong row"):
    ops = OneRow


class WrongRowOfNumbers(Reference, name="one format: none, a wrong row"):
    ops = OneRowWithoutFormat


@pytest.mark.parametrize("engine", [WrongRow, WrongRowOfNumbers])
def test_one_wrong_row_does_not_accuse_other_rows(engine: type[Reference], tmp_path: Path) -> None:
    """Nearly all elements of this product would be off with llama.cpp's conversions."""
    path = written(tmp_path, n_embd=256, n_ff=256, quant="Q4_K")
    found = [v for v in verdicts_of(plan_for(path, engine=engine.name, suites=("trace",)))]
    wrong = [v for v in found if v.status == "diverged"]
    assert {v.detail["node"] for v in wrong} == {"ffn_up-1"}
    assert {tuple(v.detail["positions"]["indices"]) for v in wrong} == {(3,)}


@pytest.mark.parametrize(
    ("engine", "statuses"), [(Honest, {"agreed"}), (Wrong, {"diverged"})], ids=["honest", "wrong"]
)
def test_q8_0_blocks_before_k_quant_weights_are_recognised(
    engine: type[Reference], statuses: set[str], tmp_path: Path
) -> None:
    plan = plan_for(
        written(tmp_path, n_embd=256, n_ff=256, quant="Q4_K"),
        engine=engine.name,
        suites=("trace", "products"),
    )
    found = {v.status for v in verdicts_of(plan)}
    assert found - {"not-applicable"} >= statuses
    assert ("diverged" in found) == ("diverged" in statuses)
