"""Conversions of activations and subnormal scales, for engines that show only logits."""

from contextlib import closing
from pathlib import Path

import pytest

from lockstep.harness.blackbox.asking import SliceAnswer
from lockstep.harness.blackbox.lenses import lenses_of
from lockstep.harness.blackbox.looking import through
from tests.black_boxes import asker_of
from tests.models import builtin


def answer_of(
    engine: str, folder: Path, model: str = "q8_0", *, small: bool = False
) -> SliceAnswer:
    """Return the answer to the first lens. If `small` is True, use the first lens with subnormal
    scales."""
    path = builtin(model, folder)
    with closing(asker_of(path, folder / "made", engine=engine, oracle="llama.cpp")) as asker:
        lenses, _ = lenses_of(asker.file, asker.layers_to_load)
        return through(asker, next(lens for lens in lenses if lens.holds_small or not small)).answer


@pytest.mark.parametrize(
    "engine",
    [
        *("activations-bf16", "activations-int8-blocks", "activations-int8-rows"),
        *("activations-mxfp4", "activations-nvfp4"),
    ],
)
def test_known_conversion_explains_the_logits(engine: str, tmp_path: Path) -> None:
    assert answer_of(f"honest:{engine}", tmp_path).status == "agreed"


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        ("activations-truncated", "no known conversion"),
        ("activation-scales-in-bf16", "no known conversion"),
        ("activation-scales-mismatched", "token_embd.weight"),
    ],
)
def test_mistake_in_a_product_is_found(mistake: str, found: str, tmp_path: Path) -> None:
    answer = answer_of(f"mutant:{mistake}", tmp_path)
    assert answer.status == "diverged"
    assert found in answer.summary


def test_flushed_scales_are_found(tmp_path: Path) -> None:
    answer = answer_of("mutant:q8-0-small-scales-flushed", tmp_path, small=True)
    assert answer.status == "diverged"
    assert "token_embd.weight with subnormal scales" in answer.summary


def test_conversion_to_seven_bits_is_found(tmp_path: Path) -> None:
    assert answer_of("mutant:activations-of-seven-bits", tmp_path, "q4_0").status == "diverged"
