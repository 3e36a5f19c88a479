"""Vocabularies of tokenizer.model, read by SentencePiece's own library."""

from pathlib import Path

import pytest

from lockstep.harness.originals.compare import compare_original
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import Conversion, convert

NO_LIBRARY = "sentencepiece is missing: no tokenizer.model was made"
N_PIECES = 60


@pytest.fixture
def pieces(tmp_path: Path) -> Conversion:
    """Return a checkpoint with a tokenizer.model, and its honest conversion."""
    library = pytest.importorskip("sentencepiece", reason=NO_LIBRARY)
    texts = tmp_path / "texts"
    texts.write_text("\n".join(f"{'ab' * (n % 5)} {'cde' * (n % 7)} fgh{n}" for n in range(99)))
    library.SentencePieceTrainer.train(
        input=str(texts),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=N_PIECES,
        model_type="bpe",
        minloglevel=2,
    )
    made = convert("llama", ck.write_checkpoint(tmp_path, "llama"))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    read = library.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    padding = [f"[PAD{n}]" for n in range(N_PIECES, ck.N_VOCAB)]
    keys = "tokenizer.ggml"
    made.keys = {key: value for key, value in made.keys.items() if "tokenizer" not in key}
    made.keys |= {
        f"{keys}.model": ("STR", "llama"),
        f"{keys}.tokens": ("ARR[STR]", [*map(read.IdToPiece, range(N_PIECES)), *padding]),
        f"{keys}.token_type": ("ARR[I32]", [2, 3, 3, *[1] * (N_PIECES - 3), *[5] * len(padding)]),
        f"{keys}.scores": (
            "ARR[F32]",
            [*map(read.GetScore, range(N_PIECES)), *[-10000.0] * len(padding)],
        ),
        f"{keys}.bos_token_id": ("U32", 266),
        f"{keys}.eos_token_id": ("U32", 267),
    }
    return made


def places(folder: Path, made: Conversion) -> list[str]:
    found = compare_original(folder, made.write(folder / "made.gguf"))
    return [each.place for part in found.parts for each in (*part.differences, *part.skipped)]


def test_honest_conversion_of_pieces_passes(pieces: Conversion, tmp_path: Path) -> None:
    assert places(tmp_path, pieces) == []


@pytest.mark.parametrize(
    ("name", "value"), [("scores", -3.25), ("tokens", "other"), ("token_type", 4 + 2)]
)
def test_wrong_piece_is_named(name: str, value: object, pieces: Conversion, tmp_path: Path) -> None:
    pieces.edit(name, 33, value)
    assert places(tmp_path, pieces) == ["token 33"]


def test_missing_scores_are_named(pieces: Conversion, tmp_path: Path) -> None:
    del pieces.keys["tokenizer.ggml.scores"]
    assert places(tmp_path, pieces) == ["tokenizer.ggml.scores"]


def test_wrong_space_before_a_text_is_named(pieces: Conversion, tmp_path: Path) -> None:
    key = "tokenizer.ggml.add_space_prefix"
    pieces.keys[key] = ("BOOL", False)
    assert places(tmp_path, pieces) == [key]
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": false}')
    assert places(tmp_path, pieces) == []
    del pieces.keys[key]  # llama.cpp adds a space if the key is missing
    assert places(tmp_path, pieces) == [key]
