"""Half-precision engines are not accused on F32 probe models, unless the difference is larger than
half precision can explain."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import Bisection
from lockstep.harness.blackbox.in_halves import NOT_WEIGHTS
from lockstep.harness.blackbox.parts import OUTPUT
from lockstep.harness.judging.conversions import in_bf16, in_halves
from lockstep.harness.mutants.parts.mistakes import as_weight, change_weights
from lockstep.harness.records import EngineInfo, Evaluation, Request, Verdict
from lockstep.harness.runs.run import bisect_one
from tests.black_boxes import asker_of, bisected, with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import written
from tests.quiet_engines import ops_with, showing


class F16Ops(Mirror):
    keep: ClassVar[Callable[[F32], Any]] = staticmethod(in_halves)
    more = 1.0  # factor on the results of gates

    def run(self, formula: Any, *args: Any) -> F32:
        kept: F32 = self.keep(super().run(formula, *args)).astype(np.float32)
        return kept

    def get_rows(self, weight: Weight, ids: NDArray[np.int32]) -> F32:
        kept: F32 = self.keep(super().get_rows(weight, ids)).astype(np.float32)
        return kept

    def add(self, a: F32, b: F32) -> F32:
        kept: F32 = self.keep(super().add(a, b)).astype(np.float32)
        return kept

    def swiglu(self, gate: F32, up: F32) -> F32:
        return super().swiglu(gate, up) * np.float32(self.more)


class BF16Ops(F16Ops):
    keep = staticmethod(in_bf16)


class HeadInF32(BF16Ops):
    def linear(self, x: F32, weight: Weight) -> F32:
        ops = Mirror() if weight.name == OUTPUT else super()
        return ops.linear(x, weight)


class WrongOps(F16Ops):
    more = 1.25


def in_bf16_if_a_matrix(get: Callable[[str], Weight], name: str) -> Weight:
    weight = get(name)
    if len(weight.shape) < 2 or weight.format.__name__ != "F32":
        return weight
    return as_weight(weight, in_bf16(values_of(weight)).astype(np.float32))


def swapped_if_quantised(get: Callable[[str], Weight], name: str) -> Weight:
    weight = get(name)
    if weight.format.__name__ == "F32":
        return weight
    values = values_of(weight)
    return as_weight(weight, values.reshape(-1, 2)[:, ::-1].reshape(values.shape))


def larger(weight: Weight) -> Weight:
    return as_weight(weight, values_of(weight) * np.float32(1.25))


def values_of(weight: Weight) -> F32:
    return weight.values().reshape(weight.shape)


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


class LogitsInF32(InF16, name="in halves: BF16, but for the product of the head"):
    """An engine that computes in BF16, but whose logits are not rounded to BF16."""

    ops = HeadInF32


class WeightsInBF16(InF16, name="in halves: weights alone are kept in BF16"):
    """An engine that keeps F32 matrices in BF16, and computes in F32."""

    ops = Mirror

    def make_model(self) -> Model:
        model = super().make_model()
        change_weights(model, in_bf16_if_a_matrix)
        return model


class RoundsLogits(InF16, name="in halves: logits, and nothing else"):
    ops = Mirror

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        return replace(found, logits=tuple(in_bf16(x).astype(np.float32) for x in found.logits))


class RoundsLogitsAndIsWrong(RoundsLogits, name="in halves: logits, and rope is wrong"):
    ops = ops_with(
        rope=lambda ops, x, at, p: Mirror.rope(ops, x, at, replace(p, base=1.1 * p.base))
    )


class SwapsCodes(InF16, name="in halves: F16, and weights of Q4_0 stand in each other's places"):
    def make_model(self) -> Model:
        model = super().make_model()
        change_weights(model, swapped_if_quantised)
        return model


class AlwaysTheSame(InF16, name="in halves: one for each logit, whatever it is asked"):
    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        return replace(found, logits=tuple(map(np.ones_like, found.logits)))


class LayersInF16(InF16, name="in halves: F16, ends of layers shown"):
    shown: ClassVar[tuple[str, ...]] = ("embd", "l_out")

    def describe(self) -> EngineInfo:
        return replace(Reference.describe(self), shows=self.shown)

    def evaluate(self, request: Request) -> Evaluation:
        return showing(Reference.evaluate(self, request), self.shown)


class WrongHeadInF16(LayersInF16, name="in halves: F16, ends of layers shown, the head is wrong"):
    def make_model(self) -> Model:
        model = super().make_model()
        change_weights(model, lambda get, name: larger(get(name)) if name == OUTPUT else get(name))
        return model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written(tmp_path, quant="Q4_0", n_layer=3)


def verdicts(model: Path, engine: str) -> list[Verdict]:
    more: dict[str, Any] = {"engine": engine, "oracle": "llama.cpp", "n_tokens": 16}
    return with_made_models(plan_for(model, suites=("logits", "black-box"), **more))


def of_twin(found: list[Verdict]) -> Verdict:
    (twin,) = [each for each in found if each.summary.startswith("the F32 twin: ")]
    return twin


def through_lenses(found: list[Verdict]) -> list[Verdict]:
    return [each for each in found if each.summary.startswith("a lens of ")]


@pytest.mark.parametrize(("engine", "kind"), [(InF16.name, "F16"), (InBF16.name, "BF16")])
def test_engine_in_half_precision_is_not_accused_on_a_model_in_f32(
    engine: str, kind: str, model: Path
) -> None:
    found = verdicts(model, engine)
    assert not [each.summary for each in found if each.status == "diverged"]
    twin = of_twin(found)
    assert twin.status == "not-applicable"
    assert twin.detail["computed_in"] == kind
    assert "smaller faults do not show" in twin.summary


def test_fault_larger_than_half_precision_is_found(model: Path) -> None:
    found = verdicts(model, WrongInF16.name)
    assert of_twin(found).status == "diverged"


def test_bf16_engine_with_unrounded_logits_is_not_accused(model: Path) -> None:
    found = verdicts(model, LogitsInF32.name)
    assert not [each.summary for each in found if each.status == "diverged"]
    assert of_twin(found).detail["computed_in"] == "BF16"


def test_half_precision_weights_are_named_on_the_twin(model: Path) -> None:
    found = verdicts(model, WeightsInBF16.name)
    assert not [each.summary for each in found if each.status == "diverged"]
    assert "weights in BF16" in of_twin(found).summary


def test_engine_that_rounds_only_its_logits_gets_half_a_step_of_tolerance(model: Path) -> None:
    """An engine that computes in BF16 may have larger errors than an engine with a wrong rope base.

    An earlier version therefore excused a wrong rope base in an engine that rounds only its logits.
    """
    honest, wrong = verdicts(model, RoundsLogits.name), verdicts(model, RoundsLogitsAndIsWrong.name)
    assert not [each.summary for each in honest if each.status == "diverged"]
    assert of_twin(honest).detail["computed_in"] == "BF16"
    assert of_twin(wrong).status == "diverged"


@pytest.mark.parametrize("engine", [WrongInF16.name, RoundsLogitsAndIsWrong.name])
def test_weights_are_not_blamed_if_the_engine_is_wrong_elsewhere(engine: str, model: Path) -> None:
    """An earlier version blamed every matrix, because half precision rounds its sums."""
    found = verdicts(model, engine)
    assert of_twin(found).status == "diverged"
    assert not through_lenses(found)
    assert any(NOT_WEIGHTS in each.summary for each in found)


def test_far_off_weights_are_found_in_half_precision(model: Path) -> None:
    """An earlier version skipped all lenses, because it assumed that half precision hides every
    fault."""
    found = verdicts(model, SwapsCodes.name)
    assert of_twin(found).status == "not-applicable"
    assert through_lenses(found)


@pytest.mark.parametrize(
    ("engine", "kept"),
    [
        (InF16.name, "F16"),
        (InBF16.name, "BF16"),
        (LogitsInF32.name, "BF16"),
        (WeightsInBF16.name, "BF16"),
        (RoundsLogits.name, ""),
        (AlwaysTheSame.name, ""),
        ("reference", ""),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_engine_is_tested_in_its_own_number_format(
    engine: str, kept: str, tied: bool, tmp_path: Path
) -> None:
    """The engine may use the table of embeddings as its head."""
    model = written(tmp_path, quant="Q4_0", tied=tied)
    with closing(asker_of(model, tmp_path / "made", engine=engine, oracle="llama.cpp")) as asker:
        assert asker.halves == kept


@pytest.mark.parametrize(
    ("engine", "places"),
    [(LayersInF16.name, []), (WrongHeadInF16.name, ["result_output"])],
)
def test_bisect_names_only_the_fault_of_an_engine_in_half_precision(
    engine: str, places: list[str], model: Path
) -> None:
    """An earlier version rounded embeddings to F16, which was not exact, so each layer was wrong on
    the twin."""
    plan = plan_for(model, engine=engine, oracle="llama.cpp", n_tokens=16, n_steps=2)
    said: list[Any] = []
    bisect_one(plan, said.append)
    assert isinstance(said[-1], Bisection)
    assert [each.site.name for each in said[-1].culprits] == places
    assert said[-1].exit_code == len(places)
    assert "errors below half a step of F16 do not show" in said[-1].found.rest


def test_black_box_blames_no_weight_for_half_precision_logits(model: Path, tmp_path: Path) -> None:
    """An earlier version blamed each lens, and each matrix in its place."""
    found = bisected(model, tmp_path / "made", engine=InF16.name)
    assert (found.exit_code, found.guilty, found.lenses, found.places) == (3, (), (), ())
    assert NOT_WEIGHTS in found.left_out
    assert found.whole.agrees
