"""The judge: nothing on an honest run, and one wrong element exactly where it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.quants.base import F32
from engine.weights import Weight
from harness.adapters.reference import Reference as ReferenceEngine
from harness.judge import Judge, SiteFinding, conforms, smallest_scale_error
from harness.mutants.silu_without_gate import SiluWithoutGate
from harness.noise import carried
from harness.records import DEFAULT, PRESETS, Site
from harness.report.text import explain_finding
from harness.synth.builtin import BUILTIN
from tests.models import Values, builtin, changed, judged, traced

MODELS = ("f32", "q8_0", "moe")
TRIALS = 12


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin(request.param, tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def honest(model: Path) -> Values:
    return traced(model)


def guilty(judge: Judge) -> list[SiteFinding]:
    return [finding for finding in judge.findings if finding.mismatch is not None]


def step_for(values: Values, site: Site) -> float:
    """A change that no op's limit allows: an id for ids, else a hundredth of the largest value."""
    value = values[site]
    return 1.0 if value.dtype.kind == "i" else max(float(np.abs(value).max()) / 100, 1e-3)


def random_fault(values: Values, draw: np.random.Generator) -> tuple[Site, tuple[int, ...]]:
    site = list(values)[draw.integers(len(values))]
    return site, tuple(int(draw.integers(n)) for n in values[site].shape)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", BUILTIN)
def test_an_honest_run_has_no_findings(name: str, preset: str, tmp_path: Path) -> None:
    path, settings = builtin(name, tmp_path), PRESETS[preset]
    values = traced(path, settings)
    judge = judged(path, values, values, settings)
    assert guilty(judge) == []
    assert judge.missing == []
    assert [finding.site for finding in judge.findings] == list(values)
    assert all(finding.at_fault == "" for finding in judge.findings)


def test_what_was_put_in_at_a_site_flows_on_and_is_not_judged(model: Path, honest: Values) -> None:
    site = Site(step=0, layer=0, name="ffn_norm")
    (product,) = {"ffn_gate", "ffn_moe_gate"} & {s.name for s in honest}
    other = {site: np.zeros_like(honest[site])}
    judge = judged(model, honest, honest, given=other)
    assert site not in [finding.site for finding in judge.findings]
    found = {f.site: f for f in guilty(judge)}
    assert Site(step=0, layer=0, name=product) in found  # of zeros it is not what it was
    assert all(f.site.layer == 0 and f.site.step == 0 for f in found.values())


def test_the_smallest_scale_error_that_must_show_is_four_bounds_of_the_best_element() -> None:
    truth, allowed = np.array([1.0, -8.0, 0.0, np.nan]), np.array([1e-6, 2e-6, 1e-6, 1e-6])
    assert smallest_scale_error(truth, allowed) == pytest.approx(1e-6, rel=1e-5)
    assert smallest_scale_error(np.zeros(3), np.full(3, 1e-6)) == float("inf")


@pytest.mark.parametrize("trial", range(TRIALS))
def test_one_wrong_element_is_found_where_it_is_and_nowhere_else(
    model: Path, honest: Values, trial: int
) -> None:
    """Also not at the sites after it: they work on the oracle's values."""
    site, index = random_fault(honest, np.random.default_rng([trial, 1]))
    found = guilty(judged(model, honest, changed(honest, site, index, step_for(honest, site))))
    assert [finding.site for finding in found] == [site]
    mismatch = found[0].mismatch
    assert mismatch is not None
    assert (mismatch.kind, mismatch.index, mismatch.mismatched) == ("value", index, 1)
    assert found[0].at_fault == "subject"
    assert found[0].outputs == (index[-1],)
    assert found[0].err_local > found[0].err_oracle


@pytest.mark.parametrize("trial", range(TRIALS))
def test_two_faults_are_both_found(model: Path, honest: Values, trial: int) -> None:
    draw = np.random.default_rng([trial, 2])
    subject, sites = honest, set()
    while len(sites) < 2:
        site, index = random_fault(honest, draw)
        sites.add(site)
        subject = changed(subject, site, index, step_for(honest, site))
    assert {finding.site for finding in guilty(judged(model, honest, subject))} == sites


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_element_that_is_no_number_is_found(model: Path, honest: Values, bad: float) -> None:
    site = Site(step=0, layer=0, name="attn_norm")
    subject = {**honest, site: honest[site].copy()}
    subject[site][3, 5] = bad
    (found,) = guilty(judged(model, honest, subject))
    assert found.site == site
    assert found.mismatch is not None
    assert found.mismatch.index == (3, 5)
    assert found.outputs == (5,)


def judge_alone() -> Judge:
    return Judge({}, {}, lanes=16, n_threads=1, n_ctx=512)


X = np.array([[np.nan, 1.0, 2.0, 3.0], [3e38, 3e38, 1.0, 1.0]], np.float32)  # one NaN; too large
TWOS = np.full(4, 2.0, np.float32)


@pytest.mark.parametrize("shown", [0.0, 9.0, np.inf])
@pytest.mark.parametrize(
    "compute",
    [
        lambda ops: ops.rms_norm(X, TWOS, 1e-5),
        lambda ops: ops.kq(X[:, None], np.ones((3, 1, 4), np.float32)),
        lambda ops: ops.swiglu(X, TWOS),
    ],
    ids=["norm", "product", "gate"],
)
def test_what_is_computed_with_a_nan_is_nan_and_what_may_overflow_has_no_limit(
    compute: Any, shown: float
) -> None:
    truth = compute(judge_alone())
    wrong = truth.copy()
    wrong[..., 1, 0] = shown
    assert conforms(wrong, truth, truth.bound, ())
    wrong = truth.copy()
    wrong[..., 0, 0] = shown
    assert np.isnan(truth[..., 0, 0])
    assert not conforms(wrong, truth, truth.bound, ())


def test_a_nan_in_a_hidden_cell_may_or_may_not_reach_the_sum() -> None:
    """llama.cpp multiplies it by a weight of zero; who leaves the cell out has a number."""
    ops, p = judge_alone(), np.array([[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]], np.float32)
    v = np.array([[[1.0]], [[2.0]], [[np.nan]]], np.float32)
    truth = carried(ops.kqv(p, v))
    assert np.isnan(truth).all()
    left_out = np.array([[1.5], [np.nan]], np.float32)
    assert conforms(left_out, truth, truth.bound, ())
    left_out[1] = 1.0
    assert not conforms(left_out, truth, truth.bound, ())


def test_the_oracle_is_blamed_if_it_is_the_one_that_is_wrong(model: Path, honest: Values) -> None:
    site = Site(step=1, layer=None, name="result_output")  # nothing works on its value
    oracle = changed(honest, site, (0, 7), 0.5)
    (found,) = guilty(judged(model, oracle, honest))
    assert (found.site, found.at_fault, found.outputs) == (site, "oracle", (7,))
    (both,) = guilty(judged(model, oracle, changed(honest, site, (0, 8), 0.5)))
    assert both.at_fault == "both"


@pytest.mark.parametrize("name", ["Qcur", "k_cache", "l_out"])
def test_an_early_mistake_is_not_blamed_on_what_follows_from_it(
    model: Path, honest: Values, name: str
) -> None:
    """Each op is judged on the oracle's inputs, however wrong they are."""
    site = Site(step=0, layer=0, name=name)
    wrong = honest[site] * np.float32(1.5) + np.float32(0.1)
    oracle = {**traced(model, replace={site: wrong}), site: wrong}
    last = Site(step=0, layer=None, name="result_output")
    assert np.abs(oracle[last] - honest[last]).max() > 0.01
    found = guilty(judged(model, oracle, oracle))
    assert [(finding.site, finding.at_fault) for finding in found] == [(site, "both")]


def test_two_engines_with_the_same_mistake_are_not_in_agreement(
    model: Path, honest: Values
) -> None:
    site = Site(step=1, layer=None, name="result_output")
    same = changed(honest, site, (0, 7), 0.5)
    (found,) = guilty(judged(model, same, same))
    assert found.at_fault == "both"


@pytest.mark.parametrize(
    ("name", "layer", "readers"),
    [
        ("Kcur", 1, ["Kcur_rope-1"]),
        ("embd", None, ["attn_norm-0", "ffn_inp-0"]),
        ("l_out", 0, ["attn_norm-1", "ffn_inp-1"]),
        ("l_out", 1, ["result_norm"]),
        ("attn_norm", 0, ["Qcur-0", "Kcur-0", "Vcur-0"]),
    ],
)
def test_what_the_oracle_does_not_show_is_named_with_all_that_reads_it_and_accuses_nobody(
    name: str, layer: int | None, readers: list[str], tmp_path: Path
) -> None:
    model = builtin("f32", tmp_path)
    site = Site(step=0, layer=layer, name=name)
    other = (traced(model)[site] * np.float32(1 + 2**-12)).astype(np.float32)
    shown = traced(model, replace={site: other})  # who works on what we do not know
    del shown[site]
    judge = judged(model, shown, shown)
    assert guilty(judge) == []
    assert sorted(map(str, judge.missing)) == sorted([str(site), *readers])
    assert len(judge.findings) == len(shown) - len(readers)


def test_a_site_that_the_subject_does_not_show_is_a_divergence(model: Path, honest: Values) -> None:
    site = Site(step=0, layer=1, name="Kcur")
    (found,) = guilty(judged(model, honest, {k: v for k, v in honest.items() if k != site}))
    assert found.site == site
    assert found.mismatch is not None
    assert found.mismatch.kind == "missing"
    assert explain_finding(found).endswith("missing, though the engine says that it shows it")


def test_an_oracle_of_another_shape_is_at_fault_and_the_rest_is_judged(
    model: Path, honest: Values
) -> None:
    site = Site(step=0, layer=0, name="attn_norm")
    (found,) = guilty(judged(model, {**honest, site: honest[site][:1]}, honest))
    assert (found.site, found.at_fault) == (site, "oracle")
    assert found.mismatch is not None
    assert found.mismatch.kind == "shape"


def test_a_wrong_op_is_found_in_every_layer_and_step_and_only_there(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    oracle = traced(path)
    local = traced(path, replace=oracle, make=SiluWithoutGate)
    found = guilty(judged(path, oracle, local))
    assert {finding.site.name for finding in found} == {"ffn_swiglu"}
    assert {(f.site.step, f.site.layer) for f in found} == {(0, 0), (0, 1), (1, 0), (1, 1)}


# --- an engine need not convert its activations ---------------------------------------------


class Plain(ReferenceEngine):
    """Multiplies by decoded weights, without the conversion to Q8_0 that llama.cpp makes."""

    def make_ops(self):  # type: ignore[no-untyped-def]
        from engine.ops.mirror import Mirror

        class PlainProducts(Mirror):
            def linear(self, x: F32, weight: Weight) -> F32:
                return (x.astype(np.float64) @ weight.values().astype(np.float64).T).astype(
                    np.float32
                )

        return PlainProducts(self.settings.n_threads, self.settings.n_ctx)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "f16", "moe-q8_0"])
def test_products_of_unconverted_activations_are_honest(name: str, tmp_path: Path) -> None:
    path = builtin(name, tmp_path)
    oracle = traced(path)
    local = traced(path, replace=oracle, make=Plain)
    site = Site(step=0, layer=0, name="Qcur")
    assert not np.allclose(oracle[site], local[site], rtol=1e-5, atol=0)  # it is another product
    assert guilty(judged(path, oracle, local)) == []
    wrong = changed(local, site, (0, 3), 0.01)
    assert [finding.site for finding in guilty(judged(path, oracle, wrong))] == [site]


def test_flash_attention_is_judged_as_one_op(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    values = traced(path, DEFAULT)
    site = Site(step=0, layer=0, name="fattn")
    found = guilty(judged(path, values, changed(values, site, (4, 9), 0.01), DEFAULT))
    assert [finding.site for finding in found] == [site]
    assert Site(step=0, layer=0, name="kq") not in values
