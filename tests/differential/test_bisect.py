"""Bisection finds the layer, the op, the tensor and the row that were changed, and proves it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.check.check import Plan
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import DEFAULT, PRESETS
from tests.differential.conftest import Checked, OpenPlan
from tests.models import SHARED_STORIES, with_changed_weight, written

PlanFor = Callable[..., Plan]
Bisect = Callable[[Plan], Bisection]
ROW = 11


@pytest.fixture(scope="session")
def five_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide stories260K, or a seeded model of its shape if that is missing."""
    if SHARED_STORIES.exists():
        return SHARED_STORIES
    shape = {"n_layer": 5, "n_embd": 64, "n_head": 8, "n_head_kv": 4, "n_ff": 172}
    return written(tmp_path_factory.mktemp("five"), seed=5, **shape)


@pytest.fixture(scope="session")
def bisected(open_for: OpenPlan) -> Bisect:
    def run(plan: Plan) -> Bisection:
        with open_for(plan) as opened:
            return bisect(opened.context)

    return run


def changed(path: Path, folder: Path, *weights: tuple[str, int, float]) -> Path:
    """Return a copy with one weight changed in each of the tensors."""
    for i, (tensor, row, by) in enumerate(weights):
        path = with_changed_weight(path, folder / f"changed-{i}.gguf", tensor, row, 7, by)
    return path


def assert_only(result: Bisection, layer: int, site: str, weight: str, row: int) -> None:
    (culprit,) = result.culprits
    assert (culprit.site.layer, culprit.site.name, culprit.op) == (layer, site, "MUL_MAT")
    assert culprit.weight == weight
    assert culprit.outputs == (row,)
    assert culprit.mismatch is not None
    assert culprit.mismatch.index[-1] == row
    assert result.patched is not None
    assert result.patched.confirms


@pytest.mark.parametrize("preset", PRESETS)
def test_one_changed_weight_is_found_down_to_its_row(
    preset: str,
    five_layers: Path,
    plan_for: PlanFor,
    checked: Checked,
    bisected: Bisect,
    tmp_path: Path,
) -> None:
    wrong = changed(five_layers, tmp_path, ("blk.3.ffn_down.weight", ROW, 0.5))
    plan = plan_for(five_layers, subject_model=wrong, settings=PRESETS[preset], suites=("trace",))
    assert exit_code(checked(plan)) == 1
    result = bisected(plan)
    assert_only(result, 3, "ffn_out", "blk.3.ffn_down.weight", ROW)
    first = result.first
    assert first is not None
    assert first.at_fault == "subject"
    assert result.found.err_out(first) > 100 * result.found.err_in(first)
    assert result.found.rest.startswith(f"on its own inputs {len(result.found.all) - 3} of ")
    assert [layer.layer for layer in result.layers if layer.guilty] == [3]


def test_tiny_change_is_found(
    five_layers: Path, plan_for: PlanFor, bisected: Bisect, tmp_path: Path
) -> None:
    """No text, and hardly any logit, would show such a change."""
    wrong = changed(five_layers, tmp_path, ("blk.3.ffn_down.weight", ROW, 1e-3))
    result = bisected(plan_for(five_layers, subject_model=wrong))
    assert_only(result, 3, "ffn_out", "blk.3.ffn_down.weight", ROW)


def test_two_faults_in_different_layers_are_both_found(
    five_layers: Path, plan_for: PlanFor, bisected: Bisect, tmp_path: Path
) -> None:
    faults = (("blk.1.attn_q.weight", 4, 0.3), ("blk.3.ffn_gate.weight", 20, 0.4))
    result = bisected(plan_for(five_layers, subject_model=changed(five_layers, tmp_path, *faults)))
    found = [(c.site.layer, c.site.name, c.outputs) for c in result.culprits]
    assert found == [(1, "Qcur", (4,)), (3, "ffn_gate", (20,))]
    assert result.patched is not None
    assert result.patched.confirms
    weights = [c.weight for c in result.culprits]
    assert weights == [tensor for tensor, _, _ in faults]


def test_a_fault_of_llama_cpp_as_the_subject_is_found(
    five_layers: Path, plan_for: PlanFor, checked: Checked, bisected: Bisect, tmp_path: Path
) -> None:
    """Here our engine is the oracle. llama.cpp computes the ops of its graph one by one, but
    accepts no replacement values under the names of nodes."""
    wrong = changed(five_layers, tmp_path, ("blk.3.ffn_down.weight", ROW, 0.5))
    plan = plan_for(five_layers, subject_model=wrong, engine="llama.cpp", oracle="reference")
    assert exit_code(checked(plan)) == 1
    result = bisected(plan)
    (culprit,) = result.culprits
    assert (str(culprit.site), culprit.weight) == ("ffn_out-3", "blk.3.ffn_down.weight")
    assert culprit.outputs == (ROW,)
    assert result.patched is not None
    assert not result.patched.confirms


def test_fault_in_the_oracles_file_is_found(
    five_layers: Path, plan_for: PlanFor, bisected: Bisect, tmp_path: Path
) -> None:
    wrong = changed(five_layers, tmp_path, ("blk.3.ffn_down.weight", ROW, 0.5))
    result = bisected(plan_for(wrong, subject_model=five_layers))
    assert_only(result, 3, "ffn_out", "blk.3.ffn_down.weight", ROW)


@pytest.mark.parametrize(
    ("oracle", "engine"),
    [("reference", "reference"), ("llama.cpp", "reference"), ("reference", "llama.cpp")],
)
def test_engines_that_agree_have_no_culprit(
    oracle: str, engine: str, five_layers: Path, plan_for: PlanFor, bisected: Bisect
) -> None:
    result = bisected(plan_for(five_layers, oracle=oracle, engine=engine))
    assert result.culprits == ()
    assert result.first is None
    assert result.patched is None
    assert result.found.not_shown == ()
    assert [layer.layer for layer in result.layers] == [None, 0, 1, 2, 3, 4, None]
    assert all(layer.error < 1e-5 for layer in result.layers)


def test_a_changed_row_of_embeddings_is_found_before_the_layers(
    models: Callable[[str], Path],
    plan_for: PlanFor,
    open_for: OpenPlan,
    bisected: Bisect,
    tmp_path: Path,
) -> None:
    path = models("f32")
    with open_for(plan_for(path)) as opened:
        token = opened.context.tokens[3]
    wrong = changed(path, tmp_path, ("token_embd.weight", token, 0.5))
    result = bisected(plan_for(path, subject_model=wrong))
    assert {(c.site.layer, c.site.name) for c in result.culprits} == {(None, "embd")}
    first = result.first
    assert first is not None
    assert first.outputs == (7,)


def test_flash_attention_passes_an_error_on_without_being_blamed(
    models: Callable[[str], Path], plan_for: PlanFor, bisected: Bisect, tmp_path: Path
) -> None:
    path = models("f32")
    wrong = changed(path, tmp_path, ("blk.0.attn_v.weight", 2, 0.5))
    result = bisected(plan_for(path, subject_model=wrong, settings=DEFAULT))
    assert [(c.site.layer, c.site.name) for c in result.culprits] == [(0, "Vcur")]
    errors = {str(site): error for site, error in result.found.free.items() if site.step == 0}
    assert errors["fattn-0"] > 1e-3
    assert np.isfinite(list(errors.values())).all()
