"""Probe models: slices of a model, and other changes while a model is copied."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox import rewriting
from lockstep.harness.blackbox.changes import (
    Change,
    dealt_out,
    in_rows,
    one_hot,
    one_of,
    only_columns,
    reads_first,
    signs,
    sparse_signs,
    times,
    zero,
    zero_before,
)
from lockstep.harness.blackbox.layers import at_place
from lockstep.harness.blackbox.parts import Neutral, larger
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.slices import mute_other_layers, n_layers, slice_of, without
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, Answered, Request
from lockstep.harness.sites import ATTENTION_OUT, FFN_OUT
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.black_boxes import one_layer_of
from tests.models import written


def test_slice_has_one_layer_with_the_models_values(tmp_path: Path) -> None:
    path, out = written(tmp_path, quant="Q4_1", n_layer=3), tmp_path / "slice.gguf"
    with GgufFile.open(path) as model:
        rewrite(model, slice_of(model, 2), out)
        with GgufFile.open(out) as made:
            assert made.metadata["llama.block_count"].data == 1
            assert {n.split(".")[1] for n in made.tensors if n.startswith("blk.")} == {"0"}
            assert {info.type.name for info in made.tensors.values()} == {"F32"}
            norm = model.raw("blk.2.ffn_norm.weight").tobytes()
            assert made.raw("blk.0.ffn_norm.weight").tobytes() == norm


def test_slice_keeps_the_stored_bytes(tmp_path: Path) -> None:
    path, out = written(tmp_path, quant="Q4_1"), tmp_path / "slice.gguf"
    with GgufFile.open(path) as model:
        rewrite(model, slice_of(model, 1, stored=True), out)
        with GgufFile.open(out) as made:
            ours = made.raw("blk.0.ffn_up.weight").tobytes()
            assert ours == model.raw("blk.1.ffn_up.weight").tobytes()


def test_per_layer_arrays_keep_one_element(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    keys = {
        "general.architecture": ("STR", "x"),
        "x.block_count": ("U32", 3),
        "x.attention.head_count_kv": ("ARR[U32]", [4, 5, 6]),
        "x.rope.dimension_sections": ("ARR[U32]", [1, 2, 3]),
        "x.leading_dense_block_count": ("U32", 2),
        "tokenizer.ggml.tokens": ("ARR[STR]", ["a", "b", "c"]),
    }
    write_gguf(path, keys, [("blk.1.a", (1,), "F32", np.ones(1, np.float32))])
    with GgufFile.open(path) as model:
        for layer, dense in ((1, 1), (2, 0)):
            found = slice_of(model, layer).keys
            assert list(found["x.attention.head_count_kv"].data) == [4 + layer]  # type: ignore[union-attr]
            assert found["x.leading_dense_block_count"] == ("U32", dense)
            assert not {"x.rope.dimension_sections", "tokenizer.ggml.tokens"} & set(found)


def test_encoder_decoder_layers_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    keys = {"general.architecture": ("STR", "t5"), "t5.block_count": ("U32", 2)}
    write_gguf(path, keys, [("enc.blk.0.a", (1,), "F32", np.ones(1, np.float32))])
    with GgufFile.open(path) as model, pytest.raises(Unsupported, match="encoder and decoder"):
        n_layers(model)


def test_muted_layers_add_nothing(tmp_path: Path) -> None:
    path, out = written(tmp_path, n_layer=3), tmp_path / "muted.gguf"
    with GgufFile.open(path) as model:
        rewrite(model, mute_other_layers(model, (1,)), out)
        with GgufFile.open(out) as made:
            for layer in range(3):
                weights = made.raw(f"blk.{layer}.ffn_down.weight").view(np.float32)
                assert weights.any() == (layer == 1)


def test_change_gets_the_row_numbers_in_any_order_of_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "CHUNK", 100)
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    whole = [one_hot(rows, 0), signs(1.0)(rows, 0)]
    for change, expected in zip((one_hot, signs(1.0)), whole, strict=True):
        parts = [change(rows[:2], 0), change(rows[2:], 2)]
        assert np.array_equal(np.concatenate(parts), expected)
    assert np.abs(whole[1]).max() == 1
    assert not zero(rows, 0).any()
    assert times(0.5)(rows, 0)[5, 3] == rows[5, 3] / 2
    assert only_columns(1, 3)(rows, 0).any(axis=0).tolist() == [False, True, True, False]
    read = np.concatenate([dealt_out(3)(np.ones((1, 8), np.float32), i) for i in range(3)])
    assert read.sum(axis=0).tolist() == [1] * 8
    assert one_of(2)(rows, 1).sum(axis=0).tolist() == [3, 3, 0, 0]
    assert not in_rows(2, zero)(rows, 0)[2:].any()
    assert np.array_equal(in_rows(2, zero)(rows, 0)[:2], rows[:2])
    assert not zero_before(2)(rows, 0)[:2].any()
    assert zero_before(2)(rows[:1], 0).tolist() == [[0, 0, 2, 3]]
    found = reads_first()(rows, 0)
    assert np.array_equal(found[2:], reads_first()(rows[2:], 2))
    assert found[:, 0].all()
    assert not found[:, 1:].any()
    assert len(np.unique(reads_first(3)(rows, 0)[:, 0])) == 3
    assert not np.isin(found[:, 0], reads_first(key=1)(rows, 0)[:, 0]).any()


def test_norms_of_sparse_signs_still_have_an_effect() -> None:
    rows = np.ones((6, 64), np.float32)
    found = sparse_signs(8.0, centred=False)(rows, 0)
    normed = found / np.sqrt(np.mean(found**2, axis=1, keepdims=True))
    assert set(np.unique(np.abs(normed))) == {0, 2, 4}
    assert set(np.unique(np.abs(found))) == {0, 8, 16, 32}
    found = sparse_signs(8.0, centred=True)(rows, 0)
    without = found - found.mean(axis=1, keepdims=True)
    assert found.sum(axis=1).all()
    assert set(np.unique(without / without.std(axis=1, keepdims=True))) == {-1, 1}
    assert not signs(1.0)(rows, 0).sum(axis=1).any()


def test_all_experts_are_replaced_by_the_first(tmp_path: Path) -> None:
    experts = np.arange(3 * 4 * 32, dtype=np.float32).reshape(3, 4, 32)
    tensor = ("blk.0.ffn_up_exps.weight", (32, 4, 3), "F32", [experts.tobytes()])
    path, out = tmp_path / "experts.gguf", tmp_path / "alike.gguf"
    write_gguf(path, {"general.architecture": ("STR", "x")}, [tensor])
    with GgufFile.open(path) as model:
        rewrite(model, slice_of_one(model, times(2.0)), out)
    with GgufFile.open(out) as made:
        assert made.tensors[tensor[0]].ne == (32, 4, 3)
        found = made.raw(tensor[0]).view(np.float32).reshape(3, 4, 32)
    assert all(np.array_equal(each, 2 * experts[0]) for each in found)


def slice_of_one(model: GgufFile, change: Change) -> Recipe:
    """Return the recipe of a slice in which one tensor is changed, and all experts are the first
    expert."""
    (name,) = model.tensors
    rows = {name: np.zeros(model.tensors[name].ne[-1], np.int64)}
    return Recipe(names={name: name}, changes={name: change}, rows=rows)


@pytest.mark.parametrize(
    ("arch", "muted"),
    [
        ("arcee", FFN_OUT),  # has factors in addition to matrices
        ("gemma2", FFN_OUT),  # caps logits
        ("gpt2", FFN_OUT),  # has learned positions
        ("bloom", FFN_OUT),  # has a norm after the embeddings
        ("olmo", ATTENTION_OUT),  # has norms without weights
        ("olmo2", ATTENTION_OUT),  # has no norm before the FFN
    ],
)
def test_larger_tensors_give_the_same_logits_except_for_eps(
    arch: str, muted: tuple[str, ...], tmp_path: Path
) -> None:
    """Larger tensors must change only the effect of eps. If they changed more, Lockstep would
    report a wrong eps for every fault that large values hide."""
    with GgufFile.open(one_layer_of(arch, tmp_path)) as model:
        changes, logits = without(model, 0, muted), []
        for number, own in enumerate((Neutral(), larger(model, 0))):
            own = replace(own, changes={**own.changes, **changes})
            rewrite(model, at_place(model, 0, {}, own), tmp_path / f"{number}.gguf")
            with Runner().open("llama.cpp", tmp_path / f"{number}.gguf", EXACT) as session:
                run = session.ask("evaluate", Request(batches=(Batch.of([5, 3, 9, 7]),)))
            assert isinstance(run, Answered)
            logits.append(run.value.logits[0])
    assert np.abs(logits[0] - logits[1]).max() <= 1e-4 * np.abs(logits[0]).max()
