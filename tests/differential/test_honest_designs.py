"""Honest engines of other designs compared with llama.cpp, far enough into a text that angles
differ."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.near import F64
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.honest.conversions import Int8Rows
from tests.models import written
from tests.plans import plan_of, verdicts_of
from tests.recorded import variant_of

SUITES = ("logits", "trace", "products")


QUANTISED = ("Q8_0", "Q4_K", "Q5_1", "TQ2_0", "Q4_0")
LESS_OFFSET = ("Q4_0", "Q5_1", "Q3_K", "Q4_K", "Q6_K", "TQ2_0")


def model_of(arch: str, folder: Path) -> Path:
    if arch in (*QUANTISED, *LESS_OFFSET):
        return written(folder, seed=6, n_layer=1, quant=arch, n_embd=256, n_ff=256)
    if arch == "llama":
        return written(folder, seed=6, n_layer=1, n_expert=6, n_expert_used=4, rope_freqs=True)
    path = folder / f"{arch}.gguf"
    variant_of(arch, path)
    return path


@pytest.mark.parametrize(
    ("arch", "design", "n_tokens"),
    [
        ("llama", "rope-inverse-frequency", 300),
        ("llama", "experts-by-id", 300),
        ("llama", "float64", 300),
        ("qwen3", "rope-power", 120),
        ("qwen3", "sums-one-by-one", 24),
        ("qwen3moe", "experts-backwards", 24),
        *((quant, "activations-int8-rows", 24) for quant in QUANTISED),
        ("Q8_0", "activations-int8-blocks", 24),
        ("Q4_K", "activations-bf16", 24),
        *((quant, "offsets-apart", 24) for quant in LESS_OFFSET),
    ],
)
def test_check_agrees_with_another_design(
    arch: str, design: str, n_tokens: int, tmp_path: Path
) -> None:
    model = model_of(arch, tmp_path)
    verdicts = verdicts_of(plan_of(model, f"honest:{design}", n_tokens=n_tokens), *SUITES)
    assert [v.summary for v in verdicts if v.status != "agreed"] == []
    assert {v.suite for v in verdicts} == set(SUITES)
    assert exit_code(verdicts) == 0


class OneCutOff(Reference, name="test: converts otherwise, and one wrongly"):
    """An engine with a float32 scale for each row, which truncates the inputs of ffn_down."""

    class ops(Int8Rows.ops):
        def activations(self, x: F32, weight: Weight) -> F64:
            right = super().activations(x, weight)
            if "ffn_down" not in weight.name:
                return right
            scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
            return np.asarray(np.trunc(x / scale) * scale, np.float64)


def test_wrong_conversion_is_found_among_honest_conversions(tmp_path: Path) -> None:
    model = model_of("Q8_0", tmp_path)
    verdicts = verdicts_of(plan_of(model, OneCutOff.name), "trace")
    wrong = [v.detail["site"] for v in verdicts if v.status == "diverged"]
    assert {site.split("-")[0] for site in wrong} == {"ffn_out"}
