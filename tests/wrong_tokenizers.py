"""Engines whose tokenizer is wrong in one way that people really get wrong."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import numpy as np

from engine.tokenizers.base import SPACE, Tokenizer
from engine.tokenizers.bert import Bert
from engine.tokenizers.gpt2 import Gpt2
from engine.tokenizers.llama import Llama
from engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from harness.adapters.reference import Reference
from harness.mutants import _slow_merges as slow_merges


@dataclass(frozen=True)
class Wrong:
    """shows_on: a built-in vocabulary; size: bytes or ids that a minimised case needs at most."""

    engine: type[Reference]
    shows_on: str
    size: int
    way: str = "encode"


class WithTokenizer(Reference):
    """The reference with `change` made to its tokenizer."""

    change: Callable[[Tokenizer], None]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = super().tokenizer
        type(self).change(tokenizer)
        return tokenizer


def engine(name: str, change: Callable[[Any], None]) -> type[Reference]:
    return type(name, (WithTokenizer,), {"name": name, "change": staticmethod(change)})


def without_space_prefix(tokenizer: Tokenizer) -> None:
    tokenizer.vocabulary = replace(tokenizer.vocabulary, add_space_prefix=False)


def by_rank(tokenizer: Llama) -> None:
    order = np.arange(tokenizer.vocabulary.n_vocab, dtype=np.int32)
    tokenizer.order = lambda: order  # type: ignore[method-assign]


def ties_to_the_right(tokenizer: Llama) -> None:
    tokenizer.segment = partial(slow_merges.ids, tokenizer, from_the_right=True)  # type: ignore[method-assign]


def unigram(tokenizer: Llama) -> None:
    """The pieces with the best sum of scores instead of merges."""
    ids, scores = tokenizer.vocabulary.ids, tokenizer.vocabulary.scores

    def segment(text: bytes) -> Iterator[int]:
        edges = list(accumulate(map(len, slow_merges.characters(text)), initial=0))
        best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
        for last, end in enumerate(edges[1:]):
            for start in edges[max(0, last - 12) : last + 1]:
                token = ids.get(text[start:end])
                found, score = [token or 0], scores[token or 0]
                if token is None:
                    if start != edges[last]:
                        continue
                    found, score = [tokenizer.byte_token(b) for b in text[start:end]], -1e6
                row = (best[start][0] + score, [*best[start][1], *found])
                best[end] = max(best.get(end, row), row, key=lambda r: r[0])
        return iter(best[len(text)][1])

    tokenizer.segment = segment  # type: ignore[method-assign]


def without_byte_fallback(tokenizer: Llama) -> None:
    tokenizer.byte_token = lambda byte: 0  # type: ignore[method-assign]


def default_pre_tokenizer(tokenizer: Gpt2) -> None:
    tokenizer.splitter = type(tokenizer.splitter)(PRE_TOKENIZERS["default"].expressions)


def with_accents(tokenizer: Bert) -> None:
    tokenizer.strip_accents = False


class SpecialsParsed(Reference):
    name = "specials-parsed"

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        return super().tokenize(texts, add_special=add_special, parse_special=True)


class BosTwice(Reference):
    name = "bos-twice"

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        rows = super().tokenize(texts, add_special=add_special, parse_special=parse_special)
        bos = self.tokenizer.vocabulary.bos
        return [[bos, *row] if row[:1] == [bos] else row for row in rows]


class PartsDropped(Reference):
    name = "partial-characters-dropped"

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        texts = super().detokenize(
            ids, remove_special=remove_special, unparse_special=unparse_special
        )
        return [text.decode(errors="ignore").encode() for text in texts]


class SpacesKept(Reference):
    """Leaves `▁` as it is stored when it writes text."""

    name = "spaces-kept"

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        texts = super().detokenize(
            ids, remove_special=remove_special, unparse_special=unparse_special
        )
        return [text.replace(b" ", SPACE) for text in texts]


WRONG = {
    row.engine.name: row
    for row in (
        Wrong(engine("no-space-prefix", without_space_prefix), "llama", 1),
        Wrong(engine("merges-by-rank", by_rank), "llama-ties", 4),
        Wrong(engine("ties-to-the-right", ties_to_the_right), "llama-ties", 4),
        Wrong(engine("unigram-for-llama", unigram), "llama-ties", 4),
        Wrong(engine("no-byte-fallback", without_byte_fallback), "llama", 2),
        Wrong(engine("default-pre-tokenizer", default_pre_tokenizer), "gpt2", 4),
        Wrong(engine("accents-kept", with_accents), "bert", 3),
        Wrong(SpecialsParsed, "gpt2", 13),
        Wrong(BosTwice, "llama", 0),
        Wrong(PartsDropped, "gpt2", 1, "decode"),
        Wrong(SpacesKept, "llama", 2, "decode"),
    )
}
