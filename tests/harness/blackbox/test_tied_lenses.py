"""Lenses of models with tied embeddings, such as gemma2."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.blackbox import tied_lenses as tied
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.blackbox.lens import LARGEST_STEP
from lockstep.harness.blackbox.lenses import lenses_of
from lockstep.harness.blackbox.looking import through
from lockstep.harness.catalogue.models import with_keys
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.models import open_for_variants as llama_cpp_opened
from lockstep.harness.synth.any_arch import variant_named
from tests.black_boxes import asker_of as any_asker_of
from tests.black_boxes import copy_with, one_nibble

HONEST = ("float64", "activations-bf16", "activations-int8-rows", "offsets-apart", "silu-tanh")
WRONG = ("q4-0-nibbles-in-order", "q4-0-scale-bf16", "q4-0-offset")


def asker_of(path: Path, folder: Path, **changes: Any) -> SliceAsker:
    """Return an asker whose oracle shows a graph. The graph is needed to find a layer without a
    window."""
    return any_asker_of(path, folder, oracle="llama.cpp", **changes)


def gemma2(folder: Path, quant: str, **sizes: int) -> Path:
    path = folder / "gemma2.gguf"
    variant = variant_named("gemma2")
    with llama_cpp_opened() as session:
        made = replace(variant, sizes=(("n_layer", 1), ("n_vocab", 256), *sizes.items()))
        make_variant(made, path, quant=quant, session=session)
    return path


def test_one_wrong_nibble_is_found_and_its_tensor_named(tmp_path: Path) -> None:
    path, tensor = gemma2(tmp_path, "Q4_0"), "blk.0.attn_k.weight"
    other = copy_with(path, tmp_path / "other.gguf", tensor, one_nibble)
    asker = asker_of(path, tmp_path / "made", subject_model=other)
    lenses, left_out = lenses_of(asker.file)
    its = [lens for lens in lenses if any(s.tensor == tensor for s in lens.stretches)]
    assert (len(its), left_out) == (1, [])
    assert [through(asker, lens).tensors for lens in its] == [(tensor,)]


@pytest.mark.parametrize("engine", [f"honest:{name}" for name in HONEST])
def test_an_honest_engine_agrees(engine: str, tmp_path: Path) -> None:
    asker = asker_of(gemma2(tmp_path, "Q4_0"), tmp_path / "made", engine=engine)
    (lens, *_), _ = lenses_of(asker.file)
    assert through(asker, lens).answer.status == "agreed"


@pytest.mark.parametrize("engine", [f"mutant:{name}" for name in WRONG])
def test_engine_that_misreads_blocks_diverges(engine: str, tmp_path: Path) -> None:
    asker = asker_of(gemma2(tmp_path, "Q4_0"), tmp_path / "made", engine=engine)
    (lens, *_), _ = lenses_of(asker.file)
    assert through(asker, lens).answer.status == "diverged"


def test_blocks_of_256_in_rows_of_256_are_shown_by_two_models(tmp_path: Path) -> None:
    """One model is not enough, because a lens can distinguish fewer gates than a row has elements.

    Each weight is tested once.
    """
    path = gemma2(tmp_path, "Q4_K", n_embd=256, n_ff=512)
    with GgufFile.open(path) as file:
        lenses, left_out = lenses_of(file)
        halves = [lens for lens in lenses if lens.stretches[0].tensor == "token_embd.weight"][:2]
        assert not left_out
        assert [(lens.first, len(lens.ids)) for lens in halves] == [(0, 128), (128, 128)]
        met = np.concatenate([inputs for lens in halves for _, inputs in lens.batches])
        assert np.array_equal(np.abs(met).sum(axis=0), np.full(256, LARGEST_STEP))


def test_each_gate_is_open_only_for_its_token(tmp_path: Path) -> None:
    with GgufFile.open(gemma2(tmp_path, "Q4_0")) as file:
        (lens, *_), _ = lenses_of(file)
        x = tied.read_by_gates(file, lens, lens.ids)
    gates = x.astype(np.float32) @ tied.gates_of(x).T
    assert (np.diag(gates) > tied.SURE).all()
    assert (gates[~np.eye(len(gates), dtype=bool)] < -tied.SURE).all()


def alike(raw: NDArray[np.uint8], format: type[WeightFormat]) -> None:
    rows = raw.reshape(-1, 64 // format.weights * format.layout.itemsize)
    rows[:] = rows[0]


def test_subject_with_equal_rows_is_not_compared(tmp_path: Path) -> None:
    path = gemma2(tmp_path, "Q4_0")
    other = copy_with(path, tmp_path / "other.gguf", "token_embd.weight", alike)
    asker = asker_of(path, tmp_path / "made", subject_model=other)
    (lens, *_), _ = lenses_of(asker.file)
    assert through(asker, lens).answer.status == "not-compared"


def test_equal_rows_are_named_as_not_compared(tmp_path: Path) -> None:
    path = gemma2(tmp_path, "Q4_0")

    with GgufFile.open(path) as file:
        names = [name for name, info in file.tensors.items() if info.type.name == "Q4_0"]
    for number, name in enumerate(names):
        path = copy_with(path, tmp_path / f"{number}.gguf", name, alike)
    with GgufFile.open(path) as file:
        found, unseen = lenses_of(file)
    assert not found
    assert unseen
    assert all("gates cannot distinguish" in why for why in unseen)


def test_weights_hidden_by_a_cap_are_reported_as_not_compared(tmp_path: Path) -> None:
    """A wrong weight would be invisible behind the cap, so these weights do not count as
    agreeing."""
    path = tmp_path / "capped.gguf"
    with_keys(gemma2(tmp_path, "Q4_0"), path, {"gemma2.final_logit_softcapping": ("F32", 1e-3)})
    tensor = "blk.0.attn_k.weight"
    other = copy_with(path, tmp_path / "other.gguf", tensor, one_nibble)
    asker = asker_of(path, tmp_path / "made", subject_model=other)
    (lens, *_), _ = lenses_of(asker.file)
    answer = through(asker, lens).answer
    assert (answer.status, "the cap of logits, 0.001, hides" in answer.summary) == (
        "not-compared",
        True,
    )
