"""Honest conversions pass, for every architecture, type and layout of the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.originals.architectures import ARCHITECTURES
from lockstep.harness.originals.compare import OriginalComparison, compare_original
from lockstep.harness.originals.findings import SkipReason
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import ENCODERS, Conversion, convert


def compare(folder: Path, conversion: Conversion) -> OriginalComparison:
    return compare_original(folder, conversion.write(folder / "made.gguf"))


def differences(found: OriginalComparison) -> list[Any]:
    return [each for part in found.parts for each in (*part.differences, *part.skipped)]


@pytest.mark.parametrize("arch", [row.name for row in ARCHITECTURES])
def test_conversion_of_every_architecture_passes(arch: str, tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, arch)
    found = compare(tmp_path, convert(arch, values))
    assert differences(found) == []
    assert found.exit_code == 0
    assert all(part.compared for part in found.parts)


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("stored", ["F32", "F16", "BF16"])
def test_conversion_to_every_type_passes(kind: str, stored: str, tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama", stored)
    assert differences(compare(tmp_path, convert("llama", values, kind))) == []


def test_quantisation_by_way_of_f16_passes(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama", "F32")
    halves = {name: a.astype(np.float16).astype(np.float32) for name, a in values.items()}
    for kind in ("Q8_0", "Q4_0"):
        found = compare(tmp_path, convert("llama", values, kind))
        made = convert("llama", halves, kind)
        made.tensors |= {n: a for n, a in convert("llama", values).tensors.items() if a.ndim == 1}
        assert differences(compare(tmp_path, made)) == differences(found) == []


def test_order_of_tensors_and_the_model_name_do_not_matter(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "qwen3")
    made = convert("qwen3", values)
    made.tensors = dict(reversed(made.tensors.items()))
    made.keys = {**dict(reversed(made.keys.items())), "general.name": ("STR", "another")}
    made.keys["general.file_type"] = ("U32", 7)
    assert compare(tmp_path, made).exit_code == 0


def test_conversion_with_padded_rows_passes(tmp_path: Path) -> None:
    """Some converters remove the rows after the last token, and others add rows."""
    values = ck.write_checkpoint(tmp_path, "llama")
    for size in (270, 288):
        made = convert("llama", values)
        for name in ("token_embd.weight", "output.weight"):
            padded = np.zeros((size, ck.N_EMBD), np.float32)
            n = min(size, ck.N_VOCAB)
            padded[:n] = made.tensors[name][:n]
            made.tensors[name] = padded
        for name, filling in (("tokens", "[PAD]"), ("token_type", 5)):
            kind, found = made.keys[f"tokenizer.ggml.{name}"]
            longer = [*found, *[filling] * (size - len(found))][:size]
            made.keys[f"tokenizer.ggml.{name}"] = (kind, longer)
        made.set("vocab_size", size)
        assert differences(compare(tmp_path, made)) == []


def test_missing_facts_are_not_compared(tmp_path: Path) -> None:
    made = convert("llama", ck.write_checkpoint(tmp_path, "llama"))
    (tmp_path / "tokenizer_config.json").unlink()
    made.keys["tokenizer.ggml.of_another_program"] = ("U32", 1)
    found = compare(tmp_path, made)
    skipped = {(each.reason, each.place) for part in found.parts for each in part.skipped}
    assert skipped >= {
        (SkipReason.no_file, "tokenizer_config.json"),
        (SkipReason.no_row, "tokenizer.ggml.of_another_program"),
    }
    assert not any(part.differences for part in found.parts)


def test_second_copy_of_the_weights_is_ignored(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama")
    ck.write_safetensors(
        tmp_path / "consolidated.safetensors", {"wq": values["lm_head.weight"]}, "F32"
    )
    assert compare(tmp_path, convert("llama", values)).exit_code == 0


def test_vocabulary_in_two_files_is_compared(tmp_path: Path) -> None:
    made = convert("gpt2", ck.write_checkpoint(tmp_path, "gpt2"))
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    rows = described["added_tokens"]
    vocab = described["model"]["vocab"] | {row["content"]: row["id"] for row in rows}
    lines = ["#version: 0.2", *(" ".join(pair) for pair in ck.merges())]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("\n".join(lines))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(row["id"]): row for row in rows}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert not any(part.differences for part in compare(tmp_path, made).parts)
    made.edit("tokens", 70, "other")
    found = compare(tmp_path, made)
    assert [each.place for part in found.parts for each in part.differences] == ["token 70"]


def test_split_file_passes(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "gemma3")
    made = convert("gemma3", values)
    rows = [(n, a.shape[::-1], "F32", a) for n, a in made.tensors.items()]
    paths = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for number, path in enumerate(paths):
        own = {"split.no": ("U16", number), "split.count": ("U16", 2)}
        own |= {"split.tensors.count": ("I32", len(rows))}
        write_gguf(path, {**(made.keys if number == 0 else {}), **own}, rows[number::2])
    assert compare_original(tmp_path, paths[0]).exit_code == 0


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama")
    names = list(values)
    (tmp_path / "model.safetensors").unlink()
    for number in range(2):
        own = {name: values[name] for name in names[number::2]}
        ck.write_safetensors(tmp_path / f"model-{number}.safetensors", own, "BF16")
    assert compare(tmp_path, convert("llama", values)).exit_code == 0


def test_conversion_that_stores_a_tied_head_passes(tmp_path: Path) -> None:
    made = convert("qwen2", ck.write_checkpoint(tmp_path, "qwen2"))
    made.tensors["output.weight"] = made.tensors["token_embd.weight"]
    made.kinds["output.weight"] = "Q8_0"
    assert compare(tmp_path, made).exit_code == 0


def test_norm_added_in_half_precision_passes(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "gemma2", "F16")
    made = convert("gemma2", values)
    for name, array in made.tensors.items():
        if "norm" in name:
            made.tensors[name] = array.astype(np.float16).astype(np.float32)
    assert compare(tmp_path, made).exit_code == 0
