"""Checkpoints that cannot be read give one clear error. Parts without a table are not compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.harness.originals.compare import compare_original
from lockstep.harness.originals.findings import DifferenceKind, SkipReason
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import convert

Change = Callable[[Path], Any]
SHORT_CONTEXT = {"original_max_position_embeddings": 1}
TENSORS, CONFIG = "model.safetensors", "config.json"
# quotients of transformers 5.24: inverse frequencies without scaling, divided by those with scaling
LLAMA3_FACTORS = [1.0, 2.4422595500946045, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkpoint, with its honest conversion in the same folder."""
    values = ck.write_checkpoint(tmp_path, "llama")
    convert("llama", values).write(tmp_path / "made.gguf")
    return tmp_path


def configure(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | changes))

    return change


def only_pickle(folder: Path) -> None:
    (folder / TENSORS).rename(folder / "pytorch_model.bin")


def cut_tensors(folder: Path) -> None:
    raw = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(raw[:-1])


def add_dimensions(folder: Path) -> None:
    values = ck.draw("llama", "BF16")
    values["model.norm.weight"] = values["model.norm.weight"].reshape([1] * 30 + [-1])
    ck.write_safetensors(folder / TENSORS, values, "BF16")


def index_of(name: str) -> Change:
    index = {"weight_map": {"lm_head.weight": name}}
    return lambda folder: (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (only_pickle, InvalidModel),
        (cut_tensors, InvalidModel),
        (index_of("missing.safetensors"), OSError),
        (index_of("../model.safetensors"), InvalidModel),
        (lambda folder: (folder / CONFIG).unlink(), InvalidModel),
        (lambda folder: (folder / CONFIG).write_text("[" * 100000), InvalidModel),
        (lambda folder: (folder / CONFIG).write_text("[]"), InvalidModel),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff"), InvalidModel),
        (configure(architectures=["OtherForCausalLM"]), Unsupported),
        (configure(architectures=None), InvalidModel),
        (configure(num_hidden_layers=10**9), InvalidModel),
        (configure(hidden_size="64"), InvalidModel),
        (configure(num_attention_heads=5), InvalidModel),
        (configure(rope_scaling={"rope_type": "llama3"}), InvalidModel),
        (configure(rope_scaling=["linear"]), InvalidModel),
        (configure(rope_scaling={"rope_type": "longrope", **SHORT_CONTEXT}), InvalidModel),
        (configure(num_key_value_heads=10**400), InvalidModel),
        (add_dimensions, InvalidModel),
    ],
)
def test_broken_checkpoint_is_refused(change: Change, error: type[Exception], folder: Path) -> None:
    change(folder)
    with pytest.raises(error):
        compare_original(folder, folder / "made.gguf")


def test_unknown_key_is_not_compared(folder: Path, tmp_path: Path) -> None:
    made = convert("llama", ck.draw("llama", "BF16"))
    made.keys["llama.attention.scale"] = ("F32", 0.5)
    found = compare_original(folder, made.write(tmp_path / "made.gguf"))
    (skipped,) = found.parts[0].skipped
    assert (skipped.reason, skipped.place) == (SkipReason.no_row, "llama.attention.scale")


def test_two_names_of_a_tensor_are_refused(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama")
    made = convert("llama", values).write(tmp_path / "made.gguf")
    values["norm.weight"] = values["model.norm.weight"]
    ck.write_safetensors(tmp_path / TENSORS, values, "BF16")
    with pytest.raises(InvalidModel):
        compare_original(tmp_path, made)


def test_file_of_another_architecture_is_a_difference(folder: Path, tmp_path: Path) -> None:
    values = ck.draw("qwen2", "BF16")
    other = convert("qwen2", values).write(tmp_path / "other.gguf")
    found = compare_original(folder, other)
    (difference,) = found.parts[0].differences
    assert difference.place == "general.architecture"
    assert found.exit_code == 1


def test_unknown_tensor_is_not_compared(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama")
    made = convert("llama", values).write(tmp_path / "made.gguf")
    values["model.layers.0.extra.weight"] = np.zeros((2, 2), np.float32)
    ck.write_safetensors(tmp_path / TENSORS, values, "BF16")
    found = compare_original(tmp_path, made)
    (skipped,) = found.parts[1].skipped
    assert (skipped.reason, skipped.place) == (SkipReason.no_row, "model.layers.0.extra.weight")
    assert found.exit_code == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (configure(sliding_window=64), SkipReason.no_meaning),
        (lambda folder: (folder / "tokenizer.json").unlink(), SkipReason.no_file),
    ],
)
def test_absent_part_is_not_compared(change: Change, reason: SkipReason, folder: Path) -> None:
    change(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": ck.TEMPLATE}))
    found = compare_original(folder, folder / "made.gguf")
    assert {each.reason for part in found.parts for each in part.skipped} == {reason}
    assert found.exit_code == 3


def test_added_tokens_alone_are_no_vocabulary(folder: Path) -> None:
    added = {"5": {"content": "<|begin|>", "special": True}}
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": added, "chat_template": ck.TEMPLATE})
    )
    found = compare_original(folder, folder / "made.gguf")
    assert [each for part in found.parts for each in part.differences] == []


def test_post_processor_without_tokens_is_ignored(folder: Path) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    described["post_processor"]["single"] = [5, {"SpecialToken": None}]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    assert compare_original(folder, folder / "made.gguf").exit_code == 0


def test_caps_that_the_config_turns_off_have_no_key(tmp_path: Path) -> None:
    made = convert("gemma2", ck.write_checkpoint(tmp_path, "gemma2"))
    configure(attn_logit_softcapping=None)(tmp_path)
    made.drop("attn_logit_softcapping")
    (skipped,) = compare_original(tmp_path, made.write(tmp_path / "made.gguf")).parts[0].skipped
    assert (skipped.reason, skipped.place) == (SkipReason.no_meaning, "attn_logit_softcapping")


def test_factors_of_llama3_are_compared(folder: Path, tmp_path: Path) -> None:
    parameters = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    parameters |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    configure(rope_scaling=parameters)(folder)
    made = convert("llama", ck.draw("llama", "BF16"))
    for key in ("rope.scaling.type", "rope.scaling.factor"):
        made.drop(key)
    made.kinds["rope_freqs.weight"] = "F32"
    right = np.array(LLAMA3_FACTORS, np.float32)
    for factors, places in ((right, []), (right[::-1], ["rope_freqs.weight"])):
        made.tensors["rope_freqs.weight"] = np.ascontiguousarray(factors)
        found = compare_original(folder, made.write(tmp_path / "made.gguf"))
        assert [each.place for part in found.parts for each in part.differences] == places
    del made.tensors["rope_freqs.weight"]
    (missing,) = compare_original(folder, made.write(tmp_path / "made.gguf")).parts[1].differences
    assert missing.kind is DifferenceKind.missing


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel):
        compare_original(tmp_path / "none", tmp_path / "made.gguf")
