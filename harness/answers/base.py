"""Common parts of all checks of answers: the error, short descriptions, and facts of the file."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.processes.wire import DTYPES, HINTS, PLAIN, fits

MOST = (1 << 63) - 1  # maximum of int64
MOST_IDS = 1 << 31  # token ids are int32 in llama.h
# not masked arrays or matrices, whose operators have other meanings
ARRAYS = (np.ndarray, np.memmap)


class MalformedAnswer(Exception):
    """Error: an answer lacks the form that its question demands. The message names the place, the
    expected value and the actual value."""

    def __init__(self, where: str, expected: str, got: Any) -> None:
        super().__init__(f"{where}: expected {expected}, got {short(got)}")


def short(value: Any) -> str:
    """Describe a value in a few words. Call no method that the engine defines."""
    kind = type(value)
    if kind in ARRAYS:
        return f"{str(value.dtype)[:60]} of shape {value.shape}"
    if kind is int and value.bit_length() > 64:
        return f"an int of {value.bit_length()} bits"
    if kind in (str, bytes):
        return repr(value[:60])
    if kind in PLAIN:
        return repr(value)
    if kind in (list, tuple, dict):
        return f"a {kind.__name__} of {len(value)}"
    return f"the {kind.__name__} {value.__name__}" if kind is type else f"a {kind.__name__}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a session's file, from our own reader. None means unknown."""

    n_bytes: int | None = None  # size of the file
    n_vocab: int | None = None
    n_layer: int | None = None
    axes: Mapping[str, int] = field(default_factory=dict)  # keys: descriptions as in harness.sites


def facts_of(path: Path | None) -> Facts:
    """Return the facts of a model's file. Return empty facts if the file is missing, because the
    engine then reports the error itself."""
    if path is None or not path.is_file():
        return Facts()
    now = path.stat()
    return facts_at(path, now.st_size, now.st_mtime_ns)


@lru_cache(maxsize=8)  # cached, because every session needs the facts of the same file
def facts_at(path: Path, n_bytes: int, _changed: int) -> Facts:
    try:
        with GgufFile.open(path) as file:
            return facts_in(file, n_bytes)
    except (EngineError, OSError):
        return Facts(n_bytes=n_bytes)


def facts_in(file: GgufFile, n_bytes: int) -> Facts:
    arch = file.metadata.get("general.architecture")

    def number(key: str, default: int | None = None) -> int | None:
        """Return the number of a key; None if the key holds a list of values, one per layer."""
        found = file.metadata.get(f"{arch.data}.{key}") if arch else None
        if found is None:
            return default
        return found.data if type(found.data) is int else None

    tokens = file.metadata.get("tokenizer.ggml.tokens")
    listed = len(tokens.data) if tokens is not None and tokens.element is not None else None
    n_vocab = number("vocab_size", listed)
    width, heads = number("embedding_length"), number("attention.head_count")
    axes = {
        "width": width,
        "heads": heads,
        "kv_heads": number("attention.head_count_kv", heads),
        "head_dim": number("attention.key_length", width // heads if width and heads else None),
        "n_ff": number("feed_forward_length"),
        "experts": number("expert_count"),
        "used": number("expert_used_count"),
        "vocabulary": n_vocab if listed in (None, n_vocab) else None,  # None if there are two sizes
    }
    return Facts(
        n_bytes=n_bytes,
        n_vocab=axes["vocabulary"],
        n_layer=number("block_count"),
        axes={name: size for name, size in axes.items() if size is not None},
    )


# --- forms that several answers share ---------------------------------------------------------


def article(word: str) -> str:
    return "an" if word[0].lower() in "aeiou" else "a"


def expect_type(value: Any, kind: type, where: str) -> None:
    if type(value) is not kind:
        raise MalformedAnswer(where, f"{article(kind.__name__)} {kind.__name__}", value)


def expect_size(value: int, where: str) -> None:
    if not 0 <= value <= MOST:
        raise MalformedAnswer(where, "an int from 0 to 2^63 - 1", value)


def expect_many(value: Any, n: int, what: str, where: str) -> None:
    """Check that the value is a list with one answer for each question."""
    if type(value) is not list or len(value) != n:
        raise MalformedAnswer(where, f"a list of {n} {what}", value)


def expect_record(value: Any, kind: type, where: str) -> None:
    """Check that the value is a record of this type, and the type of each field."""
    expect_type(value, kind, where)
    for each in fields(kind):
        held = getattr(value, each.name)
        hint = HINTS[kind.__name__][each.name]
        if not fits(held, hint):
            raise MalformedAnswer(f"{where}.{each.name}", f"{in_words(hint)}", held)


def in_words(hint: Any) -> str:
    """Return an annotation as source text: `int`, `tuple[str, ...]`."""
    return hint.__name__ if type(hint) is type else str(hint).replace("numpy.", "")


def expect_array(value: Any, dtype: type | None, shape: Sequence[int | None], where: str) -> None:
    """Check the type and shape of an array. A `dtype` of None accepts all types of numbers, and
    None in the shape accepts any size."""
    known = type(value) in ARRAYS and value.dtype.name in DTYPES
    if known and dtype is not None:
        known = value.dtype == dtype
    if known:
        known = value.ndim == len(shape) and all(
            want is None or n == want for n, want in zip(value.shape, shape, strict=True)
        )
    if not known:
        kind = "numbers" if dtype is None else np.dtype(dtype).name
        sizes = ", ".join("any" if n is None else str(n) for n in shape)
        raise MalformedAnswer(where, f"{kind} of shape ({sizes}{',' * (len(shape) == 1)})", value)


def expect_ids(value: Any, facts: Facts, where: str) -> None:
    """Check that the value is a list of ids that the vocabulary has."""
    end = facts.n_vocab or MOST_IDS
    if type(value) is not list:
        raise MalformedAnswer(where, "a list of ids", value)
    if not value:
        return
    if {*map(type, value)} != {int}:
        wrong = next(token for token in value if type(token) is not int)
        raise MalformedAnswer(where, "ids of type int", wrong)
    if min(value) < 0 or max(value) >= end:
        wrong = next(token for token in value if not 0 <= token < end)
        raise MalformedAnswer(where, f"ids from 0 to {end - 1}", wrong)


def expect_plain(value: Any, where: str, others: Collection[type] = ()) -> None:
    """Check that a value, or a nested list or tuple, contains only JSON values and values of the
    types in `others`."""
    waiting = [value]
    while waiting:
        held = waiting.pop()
        if type(held) in (list, tuple):
            kinds = {*map(type, held)}
            if kinds & {list, tuple}:
                waiting += held
            elif not kinds <= {*PLAIN, *others}:
                wrong = next(item for item in held if type(item) not in (*PLAIN, *others))
                raise MalformedAnswer(where, "plain values", wrong)
        elif type(held) not in (*PLAIN, *others):
            raise MalformedAnswer(where, "plain values", held)
