"""Bindings still lose the text of the tokens that harness/known/divergences.toml lists."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.known import entries
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.vocabularies import vocabulary_keys

KNOWN = entries("detokenize")
NORMAL = 1
# the text from the binding's method, and from llama.cpp's own function with a large buffer
ASKED = """
import ctypes, json, sys, llama_cpp
path, token = sys.argv[1], int(sys.argv[2])
model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
buffer = ctypes.create_string_buffer(256)
n = llama_cpp.llama_token_to_piece(model._model.vocab, token, buffer, len(buffer), 0, False)
print(json.dumps([model.detokenize([token]).decode(), buffer.raw[:n].decode()]))
"""


def texts_of(piece: str, folder: Path) -> list[str]:
    keys = vocabulary_keys("gpt2", 300, 0)
    token = len(keys["tokenizer.ggml.tokens"][1]) - 1
    keys["tokenizer.ggml.tokens"][1][token] = piece
    keys["tokenizer.ggml.token_type"][1][token] = NORMAL
    path = folder / "vocabulary.gguf"
    write_gguf(path, {"general.architecture": ("STR", "llama"), **keys})
    asked = [sys.executable, "-c", ASKED, str(path), str(token)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known["id"])
def test_only_the_binding_loses_the_text_of_a_long_token(
    known: Mapping[str, Any], tmp_path: Path
) -> None:
    assert texts_of(known["piece"], tmp_path) == ["", known["piece"]]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known["id"])
def test_text_of_a_shorter_piece_is_complete(known: Mapping[str, Any], tmp_path: Path) -> None:
    piece = known["piece"][: known["longest"]]
    assert len(known["piece"]) > len(piece)
    assert texts_of(piece, tmp_path) == [piece, piece]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known["id"])
def test_entry_states_its_subject_and_report(known: Mapping[str, Any]) -> None:
    assert known["sentence"].endswith(".")
    assert known["status"].startswith(("reported", "not reported: "))
    assert bool(known["link"]) == (known["status"] == "reported")
