"""Lenses that are wider than their model. The model has width 96, so only ffn_down can have blocks
of 256."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.asking import SliceAnswer
from lockstep.harness.blackbox.lenses import lenses_of
from lockstep.harness.blackbox.looking import through
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.models import open_for_variants as llama_cpp_opened
from lockstep.harness.synth.any_arch import variant_named
from tests.black_boxes import asker_of, copy_with, one_nibble

WIDTH, DOWN = 96, "blk.1.ffn_down.weight"
SIZES = (("n_embd", WIDTH), ("n_ff", 256), ("n_vocab", 384))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return of_arch("qwen3", tmp_path)


def of_arch(arch: str, folder: Path) -> Path:
    path = folder / f"{arch}.gguf"
    with llama_cpp_opened() as session:
        variant = replace(variant_named(arch), sizes=SIZES)
        make_variant(variant, path, quant="Q4_K", session=session)
    return path


def seen(model: Path, **changes: object) -> tuple[SliceAnswer, tuple[str, ...]]:
    asker = asker_of(model, model.parent / "made", **{"oracle": "llama.cpp", **changes})
    lenses, left_out = lenses_of(asker.file, asker.layers_to_load)
    wide = [lens for lens in lenses if lens.width == 256]
    assert (len(wide), left_out) == (1, [])
    found = through(asker, wide[0])
    asker.close()
    return found.answer, found.tensors


@pytest.mark.parametrize("arch", ["llama", "qwen2", "exaone"])  # shapes of heads, width, factors
def test_llama_cpp_loads_wide_lenses_and_shows_every_weight(arch: str, tmp_path: Path) -> None:
    answer, _ = seen(of_arch(arch, tmp_path), engine="llama.cpp")
    assert answer.status == "agreed"


@pytest.mark.parametrize("engine", ["reference", "honest:activations-bf16", "honest:float64"])
def test_an_honest_engine_agrees(engine: str, model: Path) -> None:
    answer, _ = seen(model, engine=engine)
    assert answer.status == "agreed"


def test_one_wrong_nibble_is_found_and_its_tensor_named(model: Path, tmp_path: Path) -> None:
    other = copy_with(model, tmp_path / "other.gguf", DOWN, one_nibble)
    answer, tensors = seen(model, subject_model=other)
    assert (answer.status, tensors) == ("diverged", (DOWN,))


def test_engine_that_misreads_blocks_diverges(model: Path) -> None:
    answer, _ = seen(model, engine="mutant:q4-k-high-bits-of-scales")
    assert answer.status == "diverged"


class WidthInItsCode(Mirror):
    def get_rows(self, weight: Weight, ids: NDArray[np.int32]) -> F32:
        found = np.array(super().get_rows(weight, ids))
        found[..., WIDTH:] = 0
        return found


class WithWidthInItsCode(Reference, name="test:width-in-its-code"):
    ops = WidthInItsCode


def test_engine_that_supports_one_width_is_not_accused(model: Path) -> None:
    answer, _ = seen(model, engine="test:width-in-its-code")
    assert (answer.status, "accepts no model of width 256" in answer.summary) == (
        "not-compared",
        True,
    )


def test_untested_tensors_of_a_layer_are_named(tmp_path: Path) -> None:
    with GgufFile.open(of_arch("granite", tmp_path)) as file:
        _, left_out = lenses_of(file)
    assert left_out == [
        "blk.0.ffn_down.weight, blk.1.ffn_down.weight: "
        "rows of 96 are not a multiple of the Q4_K block"
    ]
