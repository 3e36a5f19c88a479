"""Files of adapters are read, or refused with one error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.adapters.control_vector import read_directions
from lockstep.engine.adapters.lora import ALPHA, KINDS, Lora
from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.synth.gguf_writer import Tensor, write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, write_llama

Q, EMBEDDING = "blk.0.attn_q.weight", "token_embd.weight"
RECIPE = LlamaRecipe(n_layer=2)
WIDTH, N_VOCAB = RECIPE.n_embd, RECIPE.n_vocab


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_llama(RECIPE, path)
    return GgufFile.open(path)


def row(name: str, *shape: int) -> Tensor:
    return name, shape[::-1], "F32", np.ones(shape, np.float32)


def pair(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> list[Tensor]:
    return [row(f"{name}.lora_a", *a), row(f"{name}.lora_b", *b)]


RIGHT = pair(Q, (4, WIDTH), (WIDTH, 4))


def write_adapter(path: Path, tensors: list[Tensor], **changed: Any) -> Path:
    keys = {"general.architecture": ("STR", "llama"), ALPHA: ("F32", 8.0)}
    keys |= {key: ("STR", value) for key, value in KINDS.items()} | changed
    write_gguf(path, {k: v for k, v in keys.items() if v is not None}, tensors)
    return path


@pytest.mark.parametrize(
    ("alpha", "scale"), [(("F32", 8.0), 1.0), (("F32", 0.0), 0.5), (None, 0.5)]
)
def test_scale_of_a_pair_is_alpha_by_rank_unless_alpha_is_zero(
    model: GgufFile, tmp_path: Path, alpha: Any, scale: float
) -> None:
    path = write_adapter(tmp_path / "a.gguf", RIGHT, **{ALPHA: alpha})
    lora = Lora([(path, 0.5), (path, 1.0)], model)
    assert [pair.scale for pair in lora.multiplied[Q]] == [scale, 2 * scale]
    lora.close()


def test_embedding_pair_has_a_row_for_each_token(model: GgufFile, tmp_path: Path) -> None:
    tensors = pair(EMBEDDING, (N_VOCAB, 4), (WIDTH, 4))
    lora = Lora([(write_adapter(tmp_path / "a.gguf", tensors), 1.0)], model)
    assert list(lora.looked_up) == [EMBEDDING]
    assert not lora.multiplied
    lora.close()


REFUSED: dict[str, tuple[list[Tensor], dict[str, Any]]] = {
    "kind": (RIGHT, {"general.type": ("STR", "model")}),
    "architecture": (RIGHT, {"general.architecture": ("STR", "qwen2")}),
    "alpha-of-text": (RIGHT, {ALPHA: ("STR", "8")}),
    "alpha-nan": (RIGHT, {ALPHA: ("F32", float("nan"))}),
    "half-a-pair": (RIGHT[:1], {}),
    "unknown-tensor": (pair("blk.9.attn_q.weight", (4, WIDTH), (WIDTH, 4)), {}),
    "other-name": ([row("blk.0.attn_q.weight", WIDTH, WIDTH)], {}),
    "transposed": (pair(Q, (WIDTH, 4), (WIDTH, 4)), {}),
    "ranks-differ": (pair(Q, (4, WIDTH), (WIDTH, 3)), {}),
    "embedding-ranks-differ": (pair(EMBEDDING, (N_VOCAB, 4), (WIDTH, 3)), {}),
    "vector": (pair(Q, (WIDTH,), (WIDTH,)), {}),
    "stack": (pair(Q, (2, 4, WIDTH), (2, WIDTH, 4)), {}),
    "rank-zero": (pair(Q, (0, WIDTH), (WIDTH, 0)), {}),
    "no-pairs": ([], {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lora_file_that_does_not_fit_is_refused(model: GgufFile, tmp_path: Path, name: str) -> None:
    tensors, changed = REFUSED[name]
    path = write_adapter(tmp_path / "bad.gguf", tensors, **changed)
    with pytest.raises(EngineError, match=r"adapter bad\.gguf: "):
        Lora([(path, 1.0)], model)


def test_directions_of_several_files_are_added(tmp_path: Path) -> None:
    first, second = tmp_path / "1.gguf", tmp_path / "2.gguf"
    write_gguf(first, {}, [row("direction.1", 8), row("direction.2", 8)])
    write_gguf(second, {}, [row("direction.2", 8)])
    found = read_directions([(first, 2.0), (second, -0.5)], n_layer=3, width=8)
    assert {layer: float(vector[0]) for layer, vector in found.items()} == {1: 2.0, 2: 1.5}


@pytest.mark.parametrize("scale", [1e39, -float("inf")])
def test_scale_without_a_float32_is_refused(model: GgufFile, tmp_path: Path, scale: float) -> None:
    lora, vector = write_adapter(tmp_path / "a.gguf", RIGHT), tmp_path / "b.gguf"
    write_gguf(vector, {}, [row("direction.1", 8)])
    with pytest.raises(InvalidModel, match=r"adapter a\.gguf: scale \* alpha / rank is"):
        Lora([(lora, scale)], model)
    with pytest.raises(InvalidModel, match=r"control vector b\.gguf: the strength is"):
        read_directions([(vector, scale)], n_layer=3, width=8)


@pytest.mark.parametrize("raw", [b"", b"GGUX", b"hello", b"GGUF\x03\0\0\0"])
def test_malformed_adapter_is_named(model: GgufFile, tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(InvalidModel, match=r"adapter bad\.gguf: "):
        Lora([(path, 1.0)], model)
    with pytest.raises(InvalidModel, match=r"control vector bad\.gguf: "):
        read_directions([(path, 1.0)], n_layer=3, width=8)


def test_control_vector_without_directions_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "bad.gguf", {}, [])
    with pytest.raises(InvalidModel, match=r"control vector bad\.gguf: "):
        read_directions([(tmp_path / "bad.gguf", 1.0)], n_layer=3, width=8)


@pytest.mark.parametrize("name", ["direction.0", "direction.3", "direction.x", "direction.1\u0661"])
def test_direction_for_a_missing_layer_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, {}, [row(name, 8)])
    with pytest.raises(EngineError, match=r"control vector bad\.gguf: "):
        read_directions([(path, 1.0)], n_layer=3, width=8)


def test_direction_of_another_width_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, {}, [row("direction.1", 9)])
    with pytest.raises(EngineError, match=r"control vector bad\.gguf: "):
        read_directions([(path, 1.0)], n_layer=3, width=8)
