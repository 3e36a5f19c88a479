"""LoRA files in GGUF, converted for Hugging Face's engines."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.adapters.lora import Lora
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.foreign.engines import PROGRAMS
from lockstep.harness.synth.adapters import LoraRecipe, write_lora
from lockstep.harness.synth.llama import LlamaRecipe, write_llama

RECIPE = LlamaRecipe(n_layer=1, n_embd=32, n_head=4, n_head_kv=2, n_ff=48)
SCALE = -0.5


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PROGRAMS)
    return importlib.import_module("peft_folder")


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    return {
        name: np.frombuffer(raw[8 + n :][slice(*about["data_offsets"])], "<f4").reshape(
            about["shape"]
        )
        for name, about in json.loads(raw[8 : 8 + n]).items()
    }


def in_halves(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Return the rows in Hugging Face's order, given the order of a llama GGUF file."""
    size = len(rows) // n_heads
    places = [
        head * size + 2 * pair + half
        for head in range(n_heads)
        for half in range(2)
        for pair in range(size // 2)
    ]
    return rows[places]


def test_folder_gives_the_same_result_as_the_file(program: Any, tmp_path: Path) -> None:
    model, file = tmp_path / "model.gguf", tmp_path / "lora.gguf"
    write_llama(RECIPE, model)
    write_lora(LoraRecipe(rank=3, alpha=6.0, quant="F16"), model, file)
    folder = tmp_path / "peft"
    program.write_peft_folder(str(model), {"path": str(file), "scale": SCALE}, folder)
    said = json.loads((folder / "adapter_config.json").read_text())
    saved = read_safetensors(folder / "adapter_model.safetensors")
    with GgufFile.open(model) as opened:
        lora = Lora([(file, SCALE)], opened)
    named = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "ffn_up": "mlp.up_proj"}
    for part, heads in (("attn_q", 4), ("attn_k", 2), ("ffn_up", 0)):
        (pair,) = lora.multiplied[f"blk.0.{part}.weight"]
        expected = pair.scale * (pair.b.values() @ pair.a.values())
        expected = in_halves(expected, heads) if heads else expected
        a, b = (
            saved[f"base_model.model.model.layers.0.{named[part]}.lora_{letter}.weight"]
            for letter in "AB"
        )
        np.testing.assert_allclose(said["lora_alpha"] / said["r"] * b @ a, expected, rtol=1e-5)
    lora.close()


def test_a_tensor_unknown_to_hugging_face_is_unsupported(program: Any, tmp_path: Path) -> None:
    model, file = tmp_path / "model.gguf", tmp_path / "lora.gguf"
    write_llama(RECIPE, model)
    write_lora(LoraRecipe(), model, file)
    file.write_bytes(file.read_bytes().replace(b"attn_q.weight", b"attn_x.weight"))
    adapter = {"path": str(file), "scale": 1.0}
    with pytest.raises(program.Unsupported):
        program.write_peft_folder(str(model), adapter, tmp_path / "peft")


def test_several_ranks_without_alpha_are_unsupported(program: Any) -> None:
    assert program.config({"a": 2, "b": 3}, 6.0, 1.0)["rank_pattern"] == {"a": 2}
    with pytest.raises(program.Unsupported):
        program.config({"a": 2, "b": 3}, 0.0, 1.0)
