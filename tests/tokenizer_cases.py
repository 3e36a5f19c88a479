"""Shared parts of the tokenizers' tests: vocabularies written by hand, rules and breakers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.harness.synth.gguf_writer import write_gguf

UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)
TYPE_NAMES = {"int8": "I8", "uint8": "U8", "int32": "I32", "float32": "F32", "int64": "I64"}

Word = tuple[str, float, int]  # text, score, type


@dataclass(frozen=True)
class Value:
    data: Any


Metadata = Mapping[str, Value]
Ask = Callable[[Tokenizer], Any]


@dataclass(frozen=True)
class Case:
    """A rule, its example, and the metadata of its vocabulary if not the default."""

    rule: str
    ask: Ask
    expected: Any
    metadata: Metadata | None = None


def broken_rules(kind: type[Tokenizer], usual: Metadata, cases: Iterable[Case]) -> list[str]:
    return [
        f"{case.rule}: {found} for {case.expected}"
        for case in cases
        for found in [case.ask(kind(usual if case.metadata is None else case.metadata))]
        if list(found) != list(case.expected)
    ]


def vocabulary(kind: str, words: Iterable[Word], **changes: Any) -> dict[str, Value]:
    """Return the metadata. changes: new values by the last part of their keys; None removes a
    key."""
    texts, scores, types = zip(*words, strict=True)
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    }
    for name, value in changes.items():
        prefix = "general." if name in ("name", "architecture") else "tokenizer.ggml."
        metadata[prefix + name.replace("__", ".")] = value
    return {key: Value(value) for key, value in metadata.items() if value is not None}


def byte_words() -> list[Word]:
    return [(f"<0x{byte:02X}>", 0, BYTE) for byte in range(256)]


def random_pieces(seed: int, alphabet: str, count: int) -> list[tuple[str, float]]:
    """Return short texts and their single characters, with scores, many of them equal."""
    raw = iter(np.random.Philox(seed).random_raw(count * 8).tolist())
    pieces = dict.fromkeys(alphabet, -8.0)
    for _ in range(count):
        size = 2 + next(raw) % 4
        text = "".join(alphabet[next(raw) % len(alphabet)] for _ in range(size))
        pieces[text] = -float(next(raw) % 12) - size
    return list(pieces.items())


def random_words(seed: int, alphabet: str, count: int = 120) -> list[Word]:
    return [(text, score, NORMAL) for text, score in random_pieces(seed, alphabet, count)]


def random_merges(words: list[Word]) -> list[str]:
    """Return merges that make each piece from two other pieces, if possible."""
    texts = {text for text, _, _ in words}
    return [
        f"{text[:at]} {text[at:]}"
        for text, _, _ in words
        for at in range(1, len(text))
        if text[:at] in texts and text[at:] in texts
    ]


def written(path: Path, metadata: Metadata) -> Path:
    """Return a GGUF file without tensors."""
    write_gguf(path, {key: typed(value.data) for key, value in metadata.items()})
    return path


def typed(data: Any) -> tuple[str, Any]:
    if isinstance(data, np.ndarray):
        return f"ARR[{TYPE_NAMES[data.dtype.name]}]", data
    if isinstance(data, list):
        return "ARR[STR]", data
    kinds = {bool: "BOOL", int: "U32", str: "STR"}
    return kinds[type(data)], data


def plain(text: str | bytes, **flags: bool) -> Ask:
    """Encode `text`, without special tokens by default."""
    raw = text.encode() if isinstance(text, str) else text
    return lambda tokenizer: tokenizer.encode(raw, **{"add_special": False, **flags})


def decode(ids: list[int], **flags: bool) -> Ask:
    return lambda tokenizer: tokenizer.decode(ids, **flags)
