"""ggml's deliberate roundings, mirrored: what is left at a product is float32 noise, nothing more.

Every product of our engine works on llama.cpp's own inputs here, so that only the op is compared.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference as ReferenceEngine
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import DEFAULT, EXACT, Answered, Request, Settings, Site
from lockstep.harness.sites import SITES
from tests.all_types import EXPERTS, NAMES, ROUNDING, model_of, relative_rms, rows_of_each_path
from tests.models import Values
from tests.wrong_formats import Truncating

LIMIT = 1e-6  # relative root mean square
PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
SETTINGS = {"exact": EXACT, "repacked": replace(EXACT, repack=True), "default": DEFAULT}
# the types for which ggml-cpu/repack.cpp has other code; for the rest `repacked` is `exact`
REPACKED = {"Q1_0", "Q4_0", "Q8_0", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"}
CASES = [(n, s) for n in NAMES for s in SETTINGS if s != "repacked" or n in REPACKED]

Ask = Callable[[str, str], Values]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("types")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Ask:
    """llama.cpp's traces, asked for once."""
    kept: dict[tuple[str, str], Values] = {}

    def ask(type_name: str, setting: str) -> Values:
        key = type_name, setting
        if key not in kept:
            request = Request(batches=rows_of_each_path(), capture=True)
            path = model_of(type_name, folder, **EXPERTS)
            with Runner().open("llama.cpp", path, SETTINGS[setting]) as session:
                outcome = session.ask("evaluate", request)
            assert isinstance(outcome, Answered), outcome
            kept[key] = outcome.value.trace.values()
        return kept[key]

    return ask


def on_its_inputs(
    expected: Values,
    path: Path,
    settings: Settings,
    make: Callable[[Path, Settings], ReferenceEngine] = ReferenceEngine,
) -> Values:
    """Our engine's products on the oracle's values."""
    with Runner().open("llama.cpp", path, settings) as session:
        info = session.ask("describe")
        assert isinstance(info, Answered)
    engine = make(path, replace(settings, generic=info.value.generic))
    request = Request(batches=rows_of_each_path(), capture=True, replace=expected)
    trace = engine.evaluate(request).trace
    engine.close()
    assert trace is not None
    return trace.values()


def errors(expected: Values, actual: Values) -> dict[Site, float]:
    """At every product with a weight of the model's type; a router stays F32."""
    sites = [s for s in expected if SITES[s.name].op in PRODUCTS and SITES[s.name].weight]
    sites = [site for site in sites if site.name != "ffn_moe_logits"]
    return {site: relative_rms(expected[site], actual[site]) for site in sites}


@pytest.mark.parametrize(("type_name", "setting"), CASES)
def test_mirror_agrees_with_llama_cpp_at_every_product(
    type_name: str, setting: str, oracle: Ask, folder: Path
) -> None:
    expected, path = oracle(type_name, setting), model_of(type_name, folder, **EXPERTS)
    found = errors(expected, on_its_inputs(expected, path, SETTINGS[setting]))
    worst = max(found, key=lambda site: found[site])
    assert found[worst] <= LIMIT, f"{worst} in step {worst.step}"
    assert {SITES[site.name].op for site in found} == set(PRODUCTS)
    assert {site.step for site in found} == {0, 1, 2}


# --- what the mirror must not be --------------------------------------------------------------


class Plain(Mirror):
    """Does not convert activations at all."""

    def activations(self, x: F32, weight: Weight) -> F64:
        return x.astype(np.float64)

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


class WithoutCarriedSums(Mirror):
    """Multiplies minima by the sums of the values, not by those that Q8_1 carries."""

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


def engine_with(ops: type[Mirror]) -> type[ReferenceEngine]:
    def make_ops(self: ReferenceEngine) -> Mirror:
        return ops(self.settings.n_threads, self.settings.n_ctx)

    return type(ops.__name__, (ReferenceEngine,), {"make_ops": make_ops})


@pytest.mark.parametrize("ops", [Truncating, Plain])
@pytest.mark.parametrize("type_name", ROUNDING)
def test_other_roundings_are_seen_at_every_product_that_converts(
    type_name: str, ops: type[Mirror], oracle: Ask, folder: Path
) -> None:
    expected, path = oracle(type_name, "exact"), model_of(type_name, folder, **EXPERTS)
    found = errors(expected, on_its_inputs(expected, path, EXACT, engine_with(ops)))
    assert min(found.values()) > 100 * LIMIT


@pytest.mark.parametrize("type_name", ["Q4_1", "Q5_1"])
def test_the_sums_that_q8_1_carries_are_not_those_of_its_values(
    type_name: str, oracle: Ask, folder: Path
) -> None:
    assert WeightFormat.named(type_name).vec_dot_type == "Q8_1"
    expected, path = oracle(type_name, "exact"), model_of(type_name, folder, **EXPERTS)
    found = errors(expected, on_its_inputs(expected, path, EXACT, engine_with(WithoutCarriedSums)))
    assert min(found.values()) > 10 * LIMIT


# --- the smallest scale error that is seen ----------------------------------------------------
# On full inputs and in short rows. For UNSIGNED types and for long rows: test_products.py.
