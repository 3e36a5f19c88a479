"""Text into ids and back, with the vocabulary of a model of llama.cpp."""

import ctypes
from collections.abc import Sequence

from lockstep.engine.errors import EngineError
from lockstep.harness.adapters.llama_cpp.model import LlamaModel


def check_ids(ids: Sequence[int], n_vocab: int) -> None:
    for token in ids:
        if not 0 <= token < n_vocab:
            raise EngineError(f"there is no token {token} in a vocabulary of {n_vocab}")


def tokenize(model: LlamaModel, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    room = len(text) + 8
    for _ in range(2):
        ids = (ctypes.c_int32 * room)()
        n = model.lib.llama.llama_tokenize(
            model.vocabulary, text, len(text), ids, room, add_special, parse_special
        )
        if n >= 0:
            return list(ids[:n])
        room = -n
    raise RuntimeError(f"llama_tokenize needs more room than the {room} that it asked for")


def detokenize(model: LlamaModel, ids: Sequence[int], remove: bool, unparse: bool) -> bytes:
    check_ids(ids, model.n_vocab)
    tokens = (ctypes.c_int32 * len(ids))(*ids)
    room = 16 * len(ids) + 16
    for _ in range(2):
        text = ctypes.create_string_buffer(room)
        n = model.lib.llama.llama_detokenize(
            model.vocabulary, tokens, len(ids), text, room, remove, unparse
        )
        if n >= 0:
            return text.raw[:n]
        room = -n
    raise RuntimeError(f"llama_detokenize needs more room than the {room} that it asked for")
