"""Known differences between llama.cpp's tokens and those of the original tokenizer, or of the file.

Each known difference from the original tokenizer is a [[tokens]] entry of harness/known, and our
engine does the same as llama.cpp there. The tokens that differ from the file are those whose text
makes llama.cpp treat them as control tokens, whatever the file says. An engine that uses the kinds
in the file reads and writes these tokens differently.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.vocabulary import Attr, Vocabulary
from lockstep.harness.context.suite import Context
from lockstep.harness.known import entries

SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """One [[tokens]] entry: a shrunk text that the original tokenizer and llama.cpp encode as
    different ids."""

    id: str
    original: str  # the library; its adapter has the same name
    version: str  # the version in which the difference was seen
    model: str  # tokenizer.ggml.model
    pre: str  # tokenizer.ggml.pre; empty if the key is missing
    vocabulary: str  # name for `golden fetch`; the ids are those of this vocabulary
    of_kind: bool  # True if every vocabulary of this model and pre-tokenizer has the difference
    case: str  # the text in hexadecimal digits
    parse_special: bool
    llama_cpp: tuple[int, ...]
    theirs: tuple[int, ...]
    sentence: str
    status: str
    link: str

    @property
    def text(self) -> bytes:
        return bytes.fromhex(self.case)

    def row(self) -> dict[str, Any]:
        """Return the entry's row in a report, without the ids, which belong to another
        vocabulary."""
        kept = ("id", "original", "case", "sentence", "status", "link")
        return {key: value for key, value in asdict(self).items() if key in kept}


@cache
def known_originals() -> tuple[Original, ...]:
    ids = ("llama_cpp", "theirs")
    rows = entries("tokens")
    return tuple(Original(**{**row, **{key: tuple(row[key]) for key in ids}}) for row in rows)


def originals_of(metadata: Mapping[str, Any]) -> list[Original]:
    """Return the entries for a file with this metadata; only BPE depends on the pre-tokenizer."""
    model, pre = (
        str(metadata[key].data) if key in metadata else ""
        for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre")
    )
    return [
        each
        for each in known_originals()
        if each.of_kind and each.model == model and (model != "gpt2" or each.pre == pre)
    ]


def repaired_tokens(vocabulary: Vocabulary) -> list[int]:
    pairs = enumerate(zip(vocabulary.stored_attrs, vocabulary.attrs, strict=True))
    return [
        i for i, (stored, now) in pairs if bool(stored & Attr.HIDDEN) != bool(now & Attr.HIDDEN)
    ]


def named_among(context: Context, wrong: Iterable[tuple[Any, Sequence[Any], Sequence[Any]]]) -> str:
    """Return a clause if every difference involves a token that llama.cpp treats differently than
    the file; else "". wrong: each question with the expected and the actual ids."""
    try:
        vocabulary = context.tokenizer.vocabulary
    except EngineError:
        return ""
    known = {*repaired_tokens(vocabulary)}
    sides = [{i for side in row if not isinstance(side, bytes) for i in side} for row in wrong]
    found = sorted(known.intersection(*[set().union(*sides)] if sides else [set()]))
    if not found or not all(known & side for side in sides):
        return ""
    texts = ", ".join(
        f"{i} {vocabulary.texts[i].decode(errors='replace')!r}" for i in found[:SHOWN]
    )
    texts += f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    one = "a control token" if vocabulary.attrs[found[0]] & Attr.HIDDEN else "a visible token"
    return (
        f"; llama.cpp treats {texts} as {one} because of its text, though the file says "
        "otherwise (see its log)"
    )
