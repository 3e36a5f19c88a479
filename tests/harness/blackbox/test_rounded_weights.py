"""Engines that decode quantised weights to half precision, as llama.cpp does on CUDA. They do not
round F32 weights, so F32 probe models do not show this rounding."""

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
from lockstep.harness.judging.conversions import in_bf16, in_halves
from lockstep.harness.records import EngineInfo, Evaluation, Request, Verdict
from tests.black_boxes import with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import written

CUT = np.uint32(0xFFFF_E000)  # mask of the bits of float32 that F16 has too


class DecodesToF16(Mirror):
    weights: ClassVar[Callable[[F32], Any]] = staticmethod(in_halves)
    inputs: ClassVar[Callable[[F32], Any]] = staticmethod(in_halves)

    def linear(self, x: F32, weight: Weight) -> F32:
        if weight.format.name == "F32":
            return super().linear(x, weight)
        found: NDArray[Any] = self.inputs(x) @ self.weights(weight.values()).T
        return found.astype(np.float32)


class DecodesToBF16(DecodesToF16):
    weights = inputs = staticmethod(in_bf16)


class RoundsWeightsAlone(DecodesToF16):
    inputs = staticmethod(np.float64)


class CutsWeights(DecodesToF16):
    weights = staticmethod(lambda x: (x.view(np.uint32) & CUT).view(np.float32))


class ScalesOneRow(DecodesToF16):
    def linear(self, x: F32, weight: Weight) -> F32:
        found = super().linear(x, weight)
        if weight.format.name != "F32":
            found[..., 7] *= np.float32(1.001)
        return found


class LogitsAlone(Reference, name="rounded weights: F16"):
    ops: ClassVar[type[Mirror]] = DecodesToF16

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=(), shows_nodes=False, levels=("logits",))

    def evaluate(self, request: Request) -> Evaluation:
        return replace(super().evaluate(request), trace=None)


class LogitsOfBF16(LogitsAlone, name="rounded weights: BF16"):
    ops = DecodesToBF16


class LogitsOfRoundedWeights(LogitsAlone, name="rounded weights: F16, activations in F32"):
    ops = RoundsWeightsAlone


class LogitsOfCutWeights(LogitsAlone, name="rounded weights: cut off"):
    ops = CutsWeights


class LogitsOfOneRow(LogitsAlone, name="rounded weights: F16, one row too large"):
    ops = ScalesOneRow


def diverged(tmp_path: Path, engine: str) -> list[Verdict]:
    model = written(tmp_path, quant="Q4_K", n_layer=1, n_embd=256, n_ff=256)
    more: dict[str, Any] = {"engine": engine, "oracle": "llama.cpp", "n_tokens": 16}
    found = with_made_models(plan_for(model, suites=("logits", "black-box"), **more))
    return [each for each in found if each.status == "diverged"]


@pytest.mark.parametrize("engine", [LogitsAlone, LogitsOfBF16, LogitsOfRoundedWeights])
def test_engine_that_decodes_to_halves_is_not_accused(
    engine: type[LogitsAlone], tmp_path: Path
) -> None:
    assert not [each.summary for each in diverged(tmp_path, engine.name)]


@pytest.mark.parametrize("engine", [LogitsOfCutWeights, LogitsOfOneRow])
def test_fault_in_an_engine_that_decodes_to_halves_is_found(
    engine: type[LogitsAlone], tmp_path: Path
) -> None:
    assert [each for each in diverged(tmp_path, engine.name) if each.detail.get("tensors")]
