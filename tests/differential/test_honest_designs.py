"""Honest engines of other designs against llama.cpp, far enough into a text that angles differ."""

from pathlib import Path

import pytest

from harness.check import Plan, open_plan, run_suites
from harness.exit_codes import exit_code
from harness.records import EXACT
from harness.shadow.models import make_variant, opened
from harness.synth.any_arch import variant_named
from tests.models import written

SUITES = ("logits", "trace", "products")


def model_of(arch: str, folder: Path) -> Path:
    if arch == "llama":
        return written(folder, seed=6, n_layer=1, n_expert=6, n_expert_used=4, rope_freqs=True)
    path = folder / f"{arch}.gguf"
    with opened() as namer:
        make_variant(variant_named(arch), path, session=namer)
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
    ],
)
def test_check_agrees_with_another_design(
    arch: str, design: str, n_tokens: int, tmp_path: Path
) -> None:
    model = model_of(arch, tmp_path)
    plan = Plan(
        case=design,
        model=model,
        subject_model=model,
        engine=f"honest:{design}",
        settings=EXACT,
        n_tokens=n_tokens,
    )
    opened = open_plan(plan, lambda _: None)
    try:
        verdicts = list(run_suites(opened.context, SUITES))
    finally:
        opened.close()
    assert [v.summary for v in verdicts if v.status != "agreed"] == []
    assert {v.suite for v in verdicts} == set(SUITES)
    assert exit_code(verdicts) == 0
