"""Models with biases on which an engine without a half-layer gives the right answers. Such an
engine must not conform."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.check.halves_told import halves_told
from lockstep.harness.exit_codes import exit_code
from tests.harness.suites.test_nothing_told import HalfGreedy, HalfLogits
from tests.models import with_values
from tests.plans import plan_of
from tests.recorded import variant_of

HEAD = "output.weight"


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return variant_of("gpt2", tmp_path / "gpt2.gguf")


def with_likeliest(path: Path, copy: Path) -> Path:
    """Return a copy with an output bias that makes one token always the likeliest."""
    with GgufFile.open(path) as file:
        name = HEAD if HEAD in file.tensors else "token_embd.weight"
        info = file.tensors[name]
        at = file.data_offset + info.offset
    rows = np.frombuffer(path.read_bytes(), "<f4", info.n_elements, at).reshape(-1, info.ne[0])
    return with_values(path, copy, "output_norm.bias", lambda values: values + 100 * rows[7])


def scale_products(path: Path, copy: Path, tensor: str, factor: float) -> Path:
    with GgufFile.open(path) as file:
        names = [name for name in file.tensors if name.endswith(f".{tensor}.weight")]
    for name in names:
        path = with_values(path, copy, name, lambda values: values * np.float32(factor))
    return path


def halves_not_told(plan: Plan) -> set[str]:
    opened = open_plan(plan, lambda _: None)
    try:
        found = list(run_suites(opened.context, plan.suites))
        found += halves_told(opened.context, found)
    finally:
        opened.close()
    assert "diverged" not in {verdict.status for verdict in found}
    assert (exit_code(found) == 3) == any("half" in verdict.detail for verdict in found)
    return {verdict.detail["half"] for verdict in found if "half" in verdict.detail}


@pytest.mark.parametrize(("half", "tensor"), [("attention", "attn_output"), ("ffn", "ffn_down")])
def test_half_layer_that_moves_logits_only_by_its_bias_is_not_compared(
    half: str, tensor: str, gpt2: Path, tmp_path: Path
) -> None:
    """An engine that adds only the bias of the half-layer, and computes nothing else of it, gives
    the same logits."""
    quiet = scale_products(gpt2, tmp_path / "quiet.gguf", tensor, 1e-9)
    without = scale_products(quiet, tmp_path / "without.gguf", tensor, 0.0)
    plan = plan_of(quiet, engine=HalfLogits.name, suites=("logits",), subject_model=without)
    assert halves_not_told(plan) == {half}


def test_half_layer_without_effect_on_tokens_is_not_compared_by_tokens(
    gpt2: Path, tmp_path: Path
) -> None:
    path = with_likeliest(gpt2, tmp_path / "likeliest.gguf")
    without = scale_products(path, tmp_path / "without.gguf", "attn_output", 0.0)
    plan = plan_of(path, engine=HalfGreedy.name, suites=("decode",), subject_model=without)
    assert "attention" in halves_not_told(plan)
    honest = plan_of(path, engine=HalfLogits.name, suites=("logits",))
    assert halves_not_told(honest) == set()


@pytest.mark.parametrize(("engine", "suite"), [(HalfLogits, "logits"), (HalfGreedy, "decode")])
def test_right_engine_on_an_ordinary_model_is_compared_in_both_half_layers(
    engine: type[HalfGreedy], suite: str, gpt2: Path
) -> None:
    assert halves_not_told(plan_of(gpt2, engine=engine.name, suites=(suite,), n_tokens=32)) == set()
