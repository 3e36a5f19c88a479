"""Where llama.cpp differs from the tokenizer that it imitates: [[tokens]] of harness/known.

Our engine follows llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from lockstep.harness.known import entries


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """One [[tokens]] entry: a text, shrunk, that the two sides turn into different ids."""

    id: str
    original: str  # the library, which is the name of its adapter
    version: str  # in which it was seen
    model: str  # tokenizer.ggml.model
    pre: str  # tokenizer.ggml.pre; empty if the key is missing
    vocabulary: str  # of `golden fetch`; the ids are its own
    of_kind: bool  # whether it holds for every vocabulary of this model and pre-tokenizer
    case: str  # the text, as hex
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
        """For a report: what and why; the ids belong to another vocabulary."""
        kept = ("id", "original", "case", "sentence", "status", "link")
        return {key: value for key, value in asdict(self).items() if key in kept}


@cache
def known_originals() -> tuple[Original, ...]:
    ids = ("llama_cpp", "theirs")
    rows = entries("tokens")
    return tuple(Original(**{**row, **{key: tuple(row[key]) for key in ids}}) for row in rows)


def originals_of(metadata: Mapping[str, Any]) -> list[Original]:
    """The entries that hold for a file with this metadata; only BPE goes by the pre-tokenizer."""
    model, pre = (
        str(metadata[key].data) if key in metadata else ""
        for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre")
    )
    return [
        each
        for each in known_originals()
        if each.of_kind and each.model == model and (model != "gpt2" or each.pre == pre)
    ]
