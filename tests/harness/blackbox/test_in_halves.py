"""Engines that compute in F16 or BF16 are accused of nothing on a model that is made in F32, and
those that are wrong by more than that are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import Bisection
from lockstep.harness.blackbox.in_halves import NOT_WEIGHTS
from lockstep.harness.judging.conversions import in_bf16, in_halves
from lockstep.harness.records import EngineInfo, Evaluation, Request, Verdict
from lockstep.harness.runs.run import bisect_one
from tests.black_boxes import bisected, with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import written
from tests.quiet_engines import showing


class F16Ops(Mirror):
    keep: ClassVar[Callable[[F32], Any]] = staticmethod(in_halves)
    more = 1.0  # times what gates come to

    def run(self, formula: Any, *args: Any) -> F32:
        kept: F32 = self.keep(super().run(formula, *args)).astype(np.float32)
        return kept

    def get_rows(self, weight: Weight, ids: NDArray[np.int32]) -> F32:
        kept: F32 = self.keep(super().get_rows(weight, ids)).astype(np.float32)
        return kept

    def swiglu(self, gate: F32, up: F32) -> F32:
        return super().swiglu(gate, up) * np.float32(self.more)


class BF16Ops(F16Ops):
    keep = staticmethod(in_bf16)


class WrongOps(F16Ops):
    more = 1.25


class InF16(Reference, name="in halves: F16"):
    ops: ClassVar[type[Mirror]] = F16Ops

    def make_ops(self) -> Mirror:
        return self.ops(self.settings.n_threads, self.settings.n_ctx)

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=(), levels=("logits",))

    def evaluate(self, request: Request) -> Evaluation:
        return replace(super().evaluate(request), trace=None)


class InBF16(InF16, name="in halves: BF16"):
    ops = BF16Ops


class WrongInF16(InF16, name="in halves: F16, and wrong"):
    ops = WrongOps


class LayersInF16(InF16, name="in halves: F16, ends of layers shown"):
    def describe(self) -> EngineInfo:
        return replace(Reference.describe(self), shows=("l_out",))

    def evaluate(self, request: Request) -> Evaluation:
        return showing(Reference.evaluate(self, request), ("l_out",))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written(tmp_path, quant="Q4_0", n_layer=3)


def verdicts(model: Path, engine: str) -> list[Verdict]:
    more: dict[str, Any] = {"engine": engine, "oracle": "llama.cpp", "n_tokens": 16}
    return with_made_models(plan_for(model, suites=("logits", "black-box"), **more))


@pytest.mark.parametrize(("engine", "kind"), [(InF16.name, "F16"), (InBF16.name, "BF16")])
def test_who_computes_in_halves_is_not_accused_on_a_model_in_f32(
    engine: str, kind: str, model: Path
) -> None:
    found = verdicts(model, engine)
    assert not [each.summary for each in found if each.status == "diverged"]
    (twin,) = [each for each in found if each.summary.startswith("the F32 twin: ")]
    assert twin.status == "not-applicable"
    assert f"all its logits are numbers of {kind}" in twin.summary
    assert "smaller faults are not seen on it" in twin.summary


def test_a_fault_that_is_larger_than_halves_make_is_seen(model: Path) -> None:
    found = verdicts(model, WrongInF16.name)
    (twin,) = [each for each in found if each.summary.startswith("the F32 twin: ")]
    assert twin.status == "diverged"


def test_bisect_names_no_place_on_the_twin_of_who_computes_in_halves(model: Path) -> None:
    plan = plan_for(model, engine=LayersInF16.name, oracle="llama.cpp", n_tokens=16, n_steps=2)
    said: list[Any] = []
    bisect_one(plan, said.append)
    assert isinstance(said[-1], Bisection)
    assert (said[-1].culprits, said[-1].exit_code) == ((), 0)


def test_no_weight_is_blamed_by_black_box_for_what_halves_make_of_logits(
    model: Path, tmp_path: Path
) -> None:
    """Each lens was wrong, and each matrix in its place."""
    found = bisected(model, tmp_path / "made", engine=InF16.name)
    assert (found.exit_code, found.guilty, found.lenses, found.places) == (3, (), (), ())
    assert NOT_WEIGHTS in found.left_out
    assert found.whole.agrees
