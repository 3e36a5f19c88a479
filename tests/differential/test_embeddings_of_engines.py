"""Engines that give only embeddings are also tested on generated models, which show a wrong GELU or
eps."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.in_check import check_black_box
from lockstep.harness.blackbox.whole import GATES, SMALL, TWIN
from lockstep.harness.judging.conversions import in_halves
from lockstep.harness.records import Verdict
from lockstep.harness.suites.embeddings import NORMALISED
from tests.harness.blackbox.test_in_halves import F16Ops
from tests.plans import open_both, plan_of, verdicts_of
from tests.recorded import variant_of


class Quick(Mirror):
    def gelu(self, x: F32) -> F32:
        return (x / (1 + np.exp(np.float32(-1.702) * x))).astype(np.float32)


class OtherEps(Mirror):
    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        return super().layer_norm(x, weight, bias, eps / 10)


class QuickGelu(Reference, name="test: gelu by a sigmoid"):
    ops = Quick


class InF16(Reference, name="test: embeddings in F16"):
    def make_ops(self) -> Mirror:
        return F16Ops(self.settings.n_threads, self.settings.n_ctx)

    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        return tuple(in_halves(rows).astype(np.float32) for rows in super().embed(batches))


class WrongInF16(InF16, name="test: embeddings in F16, with another GELU"):
    def make_ops(self) -> Mirror:
        class Ops(F16Ops):
            def gelu(self, x: F32) -> F32:
                return super().gelu(x) * np.float32(1.25)

        return Ops(self.settings.n_threads, self.settings.n_ctx)


class WrongEps(Reference, name="test: a tenth of the eps of layer norms"):
    ops = OtherEps


def made(model: Path, quant: str) -> Path:
    variant_of("bert", model, quant=quant)
    return model


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return made(tmp_path / "m.gguf", "F32")


def of_embeddings(model: Path, engine: str) -> list[Verdict]:
    return verdicts_of(plan_of(model, engine), "embeddings")


def asked(model: Path, engine: str) -> dict[str, str]:
    """Return the status of each verdict, by the beginning of its summary."""
    plan = plan_of(model, engine)
    with open_both(plan) as both:
        info = replace(both.context.subject_info, levels=("embed",))
        info = replace(info, computes_nodes=False, shows_nodes=False)
        found: list[Verdict] = list(check_black_box(plan, replace(both.context, subject_info=info)))
    return {verdict.summary.partition(":")[0]: verdict.status for verdict in found}


class LaterBatchesMore(Reference, name="test: a GELU of its own, and later batches wrong"):
    """An engine whose rows after the first batch are wrong. Its GELU uses no table of halves,
    because a table would make some right rows differ too."""

    def make_ops(self) -> ReferenceOps:
        return ReferenceOps()

    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        first, *rest = super().embed(batches)
        return first, *(rows * np.float32(1.5) for rows in rest)


def test_rows_of_an_honest_engine_are_not_called_wrong(
    bert: Path,
) -> None:
    first, *_ = of_embeddings(bert, LaterBatchesMore.name)
    assert first.detail["mismatched"] > 2 * 64
    assert "only 2 of 34 tokens, numbers 32 to 33, none before batch 1" in first.summary


class OfLengthOne(Reference, name="test: embeddings of length one"):
    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        found = super().embed(batches)
        return tuple(rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in found)


class OfLengthTwo(OfLengthOne, name="test: embeddings of length two"):
    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        return tuple(2 * rows for rows in super().embed(batches))


@pytest.mark.parametrize("engine", [OfLengthOne, OfLengthTwo])
def test_normalised_rows_differ_from_wrong_rows(engine: type[Reference], bert: Path) -> None:
    first, more = of_embeddings(bert, engine.name)
    assert {first.status, more.status} == {"diverged"}
    for verdict in (first, more):
        assert verdict.detail.get(NORMALISED, False) == (engine is OfLengthOne)


@pytest.mark.parametrize(
    ("quant", "engine", "found"),
    [
        ("Q8_0", "reference", {TWIN: "agreed", SMALL: "agreed", GATES: "agreed"}),
        ("Q8_0", QuickGelu.name, {TWIN: "diverged"}),
        ("F32", WrongEps.name, {SMALL: "diverged"}),
    ],
)
def test_wrong_graph_after_embeddings_shows_in_f32_and_small_activations(
    quant: str, engine: str, found: dict[str, str], tmp_path: Path
) -> None:
    assert asked(made(tmp_path / "m.gguf", quant), engine) == found


@pytest.mark.parametrize(("engine", "differs"), [(InF16, False), (WrongInF16, True)])
def test_engine_in_half_precision_is_not_accused_on_a_model_made_in_f32(
    engine: type[Reference], differs: bool, tmp_path: Path
) -> None:
    statuses = asked(made(tmp_path / "m.gguf", "Q8_0"), engine.name)
    assert statuses[TWIN] == ("diverged" if differs else "not-applicable")
    assert ("diverged" in statuses.values()) is differs
