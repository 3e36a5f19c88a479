"""The first layers of a model as a separate model: llama.cpp computes the same values in each
layer."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.node import Node
from lockstep.harness.blackbox import first_layers
from lockstep.harness.blackbox.first_layers import FirstLayers, write_first_layers
from lockstep.harness.blackbox.slices import first_layers as recipe_of
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.shadow.nodes import capture
from lockstep.harness.synth.any_arch import variant_named
from lockstep.harness.synth.gguf_writer import Typed, write_gguf
from tests.command_line import Lockstep, lockstep
from tests.split_files import write_parts

__all__ = ["lockstep"]

TOKENS = Batch.of([3, 14, 15, 9, 2, 6])


def model_of(arch: str, folder: Path, **sizes: int) -> Path:
    named = variant_named(arch)
    variant = replace(named, sizes=(*dict(named.sizes).items(), *sizes.items()))
    with open_for_variants() as session:
        make_variant(variant, folder / "model.gguf", session=session)
    return folder / "model.gguf"


def values_in(model: Path, layers: range) -> dict[str, list[NDArray[Any]]]:
    """Return the values of the nodes named after one of these layers, in the graph's order."""
    found: dict[str, list[NDArray[Any]]] = {}

    def keep(node: Node) -> None:
        if node.layer in layers:
            found.setdefault(node.name, []).append(np.array(node.value))

    with Runner().open("llama.cpp", model, EXACT) as session:
        assert isinstance(capture(session, keep, (TOKENS,)), Answered)
    return found


@pytest.mark.parametrize(
    ("arch", "enough"),
    # windows; states; a dense first layer; embeddings and keys for all layers; embeddings for all
    # layers, and arrays with four entries by chance; a tensor named like an encoder's; none of
    # these
    [
        *(("gpt-oss", 2), ("lfm2", 2), ("deepseek2", 2), ("gemma3n", 2), ("qwen4exp", 4)),
        *(("neo-bert", 1), ("granite", 1)),
    ],
)
def test_llama_cpp_computes_the_same_in_each_kept_layer(
    arch: str, enough: int, tmp_path: Path
) -> None:
    model, output = model_of(arch, tmp_path, n_layer=4), tmp_path / "first.gguf"
    found = write_first_layers(model, 3, output)
    assert (found.n, found.of, found.enough) == (3, 4, enough)
    theirs, ours = (values_in(path, range(2)) for path in (model, output))
    both = {name for name in ours.keys() & theirs.keys() if not name.startswith("node_")}
    assert len(both) > 20
    for name in both:
        for value, other in zip(ours[name], theirs[name], strict=True):
            assert np.array_equal(value, other, equal_nan=True), name


def test_layer_that_changes_in_a_shorter_model_is_refused(tmp_path: Path) -> None:
    """llama.cpp treats any gemma2 with 46 layers as the largest gemma2, and scales its scores
    differently."""
    model, output = model_of("gemma2", tmp_path, n_layer=46), tmp_path / "first.gguf"
    output.write_bytes(b"of before")
    with pytest.raises(Unsupported, match="layer 0 changes in a model of 2 layers"):
        write_first_layers(model, 2, output)
    assert output.read_bytes() == b"of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.gguf", "model.gguf"]


def test_keys_that_change_a_layer_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_other_base(file: GgufFile, n: int, window: int | None) -> object:
        recipe = recipe_of(file, n, window)
        return replace(recipe, keys={**recipe.keys, "qwen3.rope.freq_base": ("F32", 500.0)})

    monkeypatch.setattr(first_layers, "first_layers", with_other_base)
    model = model_of("qwen3", tmp_path, n_layer=3)
    with pytest.raises(Unsupported, match="layer 0 changes in a model"):
        write_first_layers(model, 2, tmp_path / "first.gguf")


@pytest.mark.parametrize("n", [2, 3])
def test_layer_count_that_is_not_smaller_is_refused(n: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="has 2 layers: keep at least 1 and at most 1"):
        write_first_layers(model_of("qwen3", tmp_path, n_layer=2), n, tmp_path / "first.gguf")


def test_slice_omits_unread_tensors(tmp_path: Path) -> None:
    """The rope factors of gemma4 are used only in layers without a window, and llama.cpp refuses a
    file with unread tensors."""
    model, output = model_of("gemma4", tmp_path, n_layer=5), tmp_path / "first.gguf"
    assert write_first_layers(model, 2, output) == FirstLayers(n=2, of=5, enough=5)
    with GgufFile.open(model) as whole, GgufFile.open(output) as first:
        assert "rope_freqs.weight" in set(whole.tensors) - set(first.tensors)


def test_refusal_of_too_few_layers_says_how_many_are_enough(tmp_path: Path) -> None:
    """llama.cpp aborts for a hybrid model whose first layers all have recurrent states."""
    model = model_of("lfm2", tmp_path, n_layer=4)
    with pytest.raises(Unsupported, match=r"first.gguf: .*; --layers 2 has one of each kind$"):
        write_first_layers(model, 1, tmp_path / "first.gguf")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"x": ("U8", 1)}, "the file has no general.architecture"),
        ({"general.type": ("STR", "adapter")}, "of type 'adapter', not a model"),
        ({}, "the file has no llama.block_count"),
        ({"llama.block_count": ("STR", "4")}, "llama.block_count is not one number"),
        (
            {"llama.block_count": ("U32", 4), "llama.nextn_predict_layers": ("BOOL", True)},
            "llama.nextn_predict_layers is not one number",
        ),
        (
            {"llama.block_count": ("U32", 4), "llama.leading_dense_block_count": ("STR", "1")},
            "llama.leading_dense_block_count is not one number",
        ),
    ],
)
def test_model_without_layers_is_refused_with_the_reason(
    keys: dict[str, Typed], says: str, tmp_path: Path
) -> None:
    arch: dict[str, Typed] = {"general.architecture": ("STR", "llama")}
    rows = [("blk.0.attn_q.weight", (4,), "F32", np.zeros(4, np.float32))]
    write_gguf(tmp_path / "x.gguf", keys if "x" in keys else arch | keys, rows)
    with open_model(tmp_path / "x.gguf") as file, pytest.raises(Unsupported, match=says):
        recipe_of(file, 2)


def test_the_model_itself_is_not_overwritten(tmp_path: Path) -> None:
    model = model_of("qwen3", tmp_path, n_layer=2)
    raw = model.read_bytes()
    with pytest.raises(InvalidModel, match="is the model itself"):
        write_first_layers(model, 1, model)
    assert model.read_bytes() == raw


def test_parts_of_a_split_model_are_never_overwritten(tmp_path: Path) -> None:
    whole = model_of("qwen3", tmp_path, n_layer=2)
    with GgufFile.open(whole) as file:
        n = len(file.tensors)
    first, second = write_parts(whole, tmp_path, (6, n - 6))
    raw = second.read_bytes()
    with pytest.raises(InvalidModel, match="is one of the 2 model files"):
        write_first_layers(first, 1, second)
    assert second.read_bytes() == raw


@pytest.mark.parametrize("n", [1, 2])
def test_hidden_file_of_the_same_name_stays(n: int, tmp_path: Path) -> None:
    """The hidden file may be the model itself."""
    hidden = model_of("qwen3", tmp_path, n_layer=2).rename(tmp_path / ".first.gguf")
    raw = hidden.read_bytes()
    with suppress(InvalidModel):
        write_first_layers(hidden, n, tmp_path / "first.gguf")
    assert hidden.read_bytes() == raw
    assert (tmp_path / "first.gguf").exists() is (n == 1)


def test_irregular_output_file_is_not_replaced(tmp_path: Path) -> None:
    model, pipe = model_of("qwen3", tmp_path, n_layer=2), tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a pipe; expected a regular file"):
        write_first_layers(model, 1, pipe)
    assert pipe.is_fifo()
    with pytest.raises(FileNotFoundError) as error:
        write_first_layers(model, 1, tmp_path / "nowhere" / "first.gguf")
    assert error.value.filename == str(tmp_path / "nowhere" / "first.gguf")


def test_command_says_how_many_layers_cover_every_kind(tmp_path: Path, lockstep: Lockstep) -> None:
    model = model_of("gemma3", tmp_path, n_layer=8)
    found = lockstep("slice", str(model), "-o", str(tmp_path / "first.gguf"))
    assert "first.gguf: 2 of 8 layers" in found.out
    assert "--layers 6 keeps one of each" in found.err
    found = lockstep("slice", str(model), "-o", str(tmp_path / "first.gguf"), "--layers", "6")
    assert "note" not in found.err


def test_short_window_keeps_all_layers_on_request(tmp_path: Path, lockstep: Lockstep) -> None:
    model, output = model_of("gemma3", tmp_path, n_layer=2), tmp_path / "first.gguf"
    found = lockstep("slice", str(model), "-o", str(output), "--short")
    assert (found.code, f"{output}: 2 of 2 layers" in found.out) == (0, True)
    with open_model(output) as file:
        assert file.metadata["gemma3.attention.sliding_window"].data == 10


def test_layer_kinds_are_counted_by_weight_types_too(tmp_path: Path) -> None:
    assert write_first_layers(
        model_of("qwen3", tmp_path, n_layer=3), 1, tmp_path / "first.gguf"
    ) == FirstLayers(n=1, of=3, enough=1)


def test_slice_with_a_new_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="has no window or other part that"):
        write_first_layers(
            model_of("qwen3", tmp_path, n_layer=2), 2, tmp_path / "short.gguf", short=True
        )
