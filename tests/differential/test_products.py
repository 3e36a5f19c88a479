"""The smallest visible scale error in products with quantised weights, for several row lengths."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.check.check import Opened, run_suites
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import Context
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.locate.locate import locate
from lockstep.harness.records import EXACT, PRESETS, Answered, Request
from lockstep.harness.sites import SITES
from lockstep.harness.suites.products import on_sparse_inputs, products_in
from lockstep.harness.synth.generator import MAKERS, stream
from tests.all_types import relative_rms
from tests.models import written
from tests.plans import open_both, plan_of
from tests.recorded import variant_of

FAULT = 1e-5  # one part in 100,000
GATE = 5e-4  # normalised mean square error that llama.cpp's own tests accept
CASES = [(quant, width) for quant in ("Q8_0", "Q4_K") for width in (256, 1024, 4096)]
LONGEST = pytest.mark.parametrize("opened", [("Q8_0", 4096)], indirect=True)
# products whose rows are as long as the width
LONG = ("Qcur", "Kcur", "Vcur", "ffn_gate", "ffn_up", "result_output")
PRODUCTS = {
    name: info
    for name, info in SITES.items()
    if info.weight is not None and info.op in ("MUL_MAT", "MUL_MAT_ID")
}
EXPERTS = {name for name in PRODUCTS if "moe" in name}
DENSE = {*PRODUCTS} - EXPERTS


class Scaled(Reference, name="test: scaled products"):
    """The reference with products of one weight scaled by `FAULT`."""

    weight: ClassVar[str] = ""

    def make_ops(self) -> Ops:
        class ScaledOps(Mirror):
            def linear(self, x: F32, weight: Weight) -> F32:
                factor = 1 + FAULT * (Scaled.weight in weight.name)
                return (super().linear(x, weight).astype(np.float64) * factor).astype(np.float32)

        return ScaledOps(self.settings.n_threads, self.settings.n_ctx)


class ClampedBelow(Reference, name="test: gate clamped below"):
    """An engine that also clamps gpt-oss's gate from below; numbers of small models reach neither
    limit."""

    class ops(Mirror):
        def swiglu_oai(self, gate: F32, up: F32) -> F32:
            return super().swiglu_oai(np.maximum(gate, np.float32(-7)), up)


class EpsilonOutside(Reference, name="test: epsilon outside"):
    """An engine that adds eps outside the root, which changes almost nothing for usual numbers."""

    class ops(Mirror):
        def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
            wide = x.astype(np.float64)
            root = np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
            spared = np.where(root > 0.5, root, root + eps)
            found: F32 = (wide / spared * weight).astype(np.float32)
            return found


@pytest.mark.parametrize(
    ("engine", "op"), [(ClampedBelow, "SWIGLU_OAI"), (EpsilonOutside, "RMS_NORM"), (Reference, "")]
)
def test_gates_and_norms_get_numbers_missing_from_small_models(
    engine: type[Reference], op: str, tmp_path: Path
) -> None:
    model = tmp_path / "gpt-oss.gguf"
    variant_of("gpt-oss", model)
    with open_both(plan_of(model, engine.name, n_tokens=12)) as both:
        assert not locate(both.context).guilty
        found = list(run_suites(both.context, ["products"]))
        bisection = bisect(both.context) if op == "SWIGLU_OAI" else None
    wrong = [verdict.detail["op"] for verdict in found if verdict.status == "diverged"]
    assert all(op in each for each in wrong)
    assert bool(wrong) == bool(op)
    if bisection is not None:
        assert bisection.first is not None
        assert bisection.first.site.name == "ffn_moe_swiglu_oai"


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """Open both engines on a model of a given type and width."""
    quant, width = request.param
    path = written(
        tmp_path_factory.mktemp("widths"),
        quant=quant,
        n_embd=width,
        seed=31,
        n_layer=1,
        n_head=4,
        n_head_kv=2,
        n_embd_head=64,
        n_ff=256,
        n_vocab=320,
    )
    with open_both(plan_of(path, n_tokens=16)) as both:
        yield both


@contextmanager
def faulty(opened: Opened, weight: str) -> Iterator[Context]:
    """Provide the wrong engine as the subject."""
    context = opened.context
    right, Scaled.weight = context.subject, weight
    with Runner().open(Scaled.name, context.subject_model, EXACT) as context.subject:
        yield context
    context.subject = right


def test_scale_off_by_one_in_100_000_shows_at_every_product_of_any_width(
    opened: Opened,
) -> None:
    found = on_sparse_inputs(opened.context)
    assert {f.site.name for f in products_in(found)} == DENSE
    assert found.guilty == ()
    assert (
        max(f.sees for f in products_in(found)) < FAULT / 4
    )  # size of an error that must show, whatever the rounding


def test_fault_missed_by_a_mean_square_gate_shows_at_each_product(
    opened: Opened,
) -> None:
    with faulty(opened, "") as context:  # a fault in every product
        verdicts = list(run_suites(context, ["products"]))
        errors = mean_square_errors(context)
    wrong = [v for v in verdicts if v.status == "diverged"]
    assert exit_code(verdicts) == 1
    assert {v.detail["site"] for v in wrong} == DENSE
    assert {v.detail["at_fault"] for v in wrong} == {"subject"}
    assert all(str(PRODUCTS[v.detail["site"]].weight) in v.detail["weight"] for v in wrong)
    assert errors.keys() == DENSE
    assert 0.5 * FAULT**2 < max(errors.values()) < GATE / 1e6


def mean_square_errors(context: Context) -> dict[str, float]:
    """Return the mean square errors of products on the oracle's inputs, computed as in llama.cpp's
    tests."""
    request = Request(batches=context.batches, capture=True)
    oracle = context.ask(context.oracle, "evaluate", request).trace.values()
    request = replace(request, replace=oracle)
    local = context.ask(context.subject, "evaluate", request).trace.values()
    sites = [site for site in oracle if site.step == 0 and site.name in PRODUCTS]
    return {site.name: relative_rms(oracle[site], local[site]) ** 2 for site in sites}


@LONGEST
def test_long_sum_order_may_explain_a_difference_on_full_inputs(opened: Opened) -> None:
    """No other suite finds this fault."""
    with faulty(opened, "attn_k") as context:
        assert exit_code(list(run_suites(context, ["trace"]))) == 0
        wrong = [v for v in run_suites(context, ["products"]) if v.status == "diverged"]
    assert {v.detail["weight"] for v in wrong} == {"blk.0.attn_k.weight"}
    assert [v.detail["step"] for v in wrong] == [0, 1]  # for the prompt, and for a single token
    sees = {f.site.name: f.sees for f in locate(opened.context).all if f.site.step == 0}
    assert min(sees[name] for name in LONG) > 10 * FAULT


@pytest.mark.parametrize("preset", PRESETS)
def test_products_of_experts_are_compared(preset: str, tmp_path: Path) -> None:
    path = written(tmp_path, seed=5, quant="Q8_0", n_expert=4, n_expert_used=2)
    with open_both(plan_of(path, settings=PRESETS[preset])) as both:
        found = on_sparse_inputs(both.context)
    assert found.guilty == ()
    names = {f.site.name for f in products_in(found)}
    assert names == DENSE - {"ffn_gate", "ffn_up", "ffn_out"} | EXPERTS
    assert max(f.sees for f in products_in(found)) < 10 * FAULT


@pytest.mark.parametrize("quant", ["IQ3_S", "Q4_K"])
@pytest.mark.parametrize("threads", [1, 8])
def test_single_product_has_memory_for_all_its_threads(quant: str, threads: int) -> None:
    """Each thread needs half a megabyte if rows form tiles, whatever the size of the matrix."""
    kind = WeightFormat.member(quant)
    one = MAKERS[quant](stream(0, quant), 1, 1.0)
    raw = np.tile(np.frombuffer(one, np.uint8), 32)
    x = np.ones((3, kind.weights), np.float32)
    with Runner().open("llama.cpp", None, replace(EXACT, n_threads=threads)) as session:
        outcome = session.ask("multiply", quant, raw, x)
    assert isinstance(outcome, Answered), outcome
    assert outcome.value.shape == (3, 32)
    assert (outcome.value == outcome.value[0, 0]).all()
