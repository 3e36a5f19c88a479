"""Logits alone may hide that GELU is computed by erf. The report says so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.ops import functions
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import EngineInfo, Verdict
from lockstep.harness.shadow.models import make_variants
from lockstep.harness.suites.parts.hidden import HIDDEN
from tests.contexts import check_engine, diverged, statuses
from tests.models import builtin


def by_erf(x: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    found: NDArray[np.float64] = 0.5 * wide * (1 + functions.erf(wide / np.sqrt(2)))
    return found


class ByErf(Mirror):
    def gelu(self, x: F32) -> F32:
        return by_erf(x).astype(np.float32)


class ByFormula(Mirror):
    """An engine that computes GELU without a table of half-precision numbers, as most engines
    do."""

    def gelu(self, x: F32) -> F32:
        wide = x.astype(np.float64)
        inner = np.sqrt(2 / np.pi) * wide * (1 + 0.044715 * wide * wide)
        return (0.5 * wide * (1 + functions.tanh(inner))).astype(np.float32)


class Shown(Reference, name="gelu by erf, with tensors"):
    ops = ByErf


class Hidden(Shown, name="gelu by erf, logits alone"):
    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=(), fixed=(), shows_nodes=False)


class LogitsAlone(Reference, name="honest, logits alone"):
    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=(), fixed=(), shows_nodes=False)


class FormulaAlone(LogitsAlone, name="gelu without a table, logits alone"):
    ops = ByFormula


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = make_variants(["gpt2"], tmp_path_factory.mktemp("models"))
    return path


def said(model: Path, engine: type[Reference], suite: str) -> list[Verdict]:
    return list(check_engine(model, engine, suite))


@pytest.mark.parametrize("engine", [Hidden, LogitsAlone, FormulaAlone])
def test_summary_says_that_agreeing_logits_may_hide_erf(
    engine: type[Reference], gpt2: Path
) -> None:
    found, *others = said(gpt2, engine, "logits")
    assert found.status == "agreed"
    assert HIDDEN in found.summary
    assert HIDDEN in found.detail["not_answered"]
    # in a run of one token, some inputs are close to -2.7, and the noise is smaller
    assert statuses(others) == ({"diverged"} if engine is Hidden else set())


def test_tensors_show_the_erf_formula(gpt2: Path) -> None:
    logits = said(gpt2, Shown, "logits")
    assert not any(HIDDEN in v.summary for v in logits)
    wrong = diverged(said(gpt2, Shown, "trace"))
    assert {v.detail["op"] for v in wrong} == {"GELU"}


def test_model_without_gelu_is_fully_compared(tmp_path: Path) -> None:
    (found,) = said(builtin("f32", tmp_path), LogitsAlone, "logits")
    assert found.status == "agreed"
    assert HIDDEN not in found.summary
