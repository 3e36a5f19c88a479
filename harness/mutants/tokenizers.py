"""Engines with one realistic mistake in the tokenizer.

They compute as the reference does, so there is no wrong op to find. `fuzz tokens` must find them,
and must shrink the text that shows the mistake.
"""

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from lockstep.engine.tokenizers.base import SPACE, Tokenizer
from lockstep.engine.tokenizers.bert import BertTokenizer
from lockstep.engine.tokenizers.gpt2 import CHARACTER_OF_BYTE, Gpt2Tokenizer
from lockstep.engine.tokenizers.llama import LlamaTokenizer
from lockstep.engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from lockstep.engine.tokenizers.splitting import Remembered, TextSplitter
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.mutants.parts import slow_merges


class WrongTokenizer(Reference):
    """The reference with `change` applied to its tokenizer before the tokenizer computes any lazy
    value.

    `lockstep fuzz tokens` must find it on the built-in vocabulary `shows_on`, in the direction
    `way`, and shrink the case to at most `size` bytes or ids.
    """

    group: ClassVar[str] = "tokenizers"
    mistake: ClassVar[str]
    shows_on: ClassVar[str]
    size: ClassVar[int]
    way: ClassVar[str] = "encode"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = super().tokenizer
        self.change(tokenizer)
        return tokenizer

    def change(self, tokenizer: Any) -> None:
        """Make the tokenizer wrong."""


class NoSpacePrefix(WrongTokenizer, name="mutant:no-space-prefix"):
    mistake = "no space is put before a text"
    shows_on = "llama"
    size = 1

    def change(self, tokenizer: Tokenizer) -> None:
        tokenizer.vocabulary = replace(tokenizer.vocabulary, add_space_prefix=False)


class MergesByRank(WrongTokenizer, name="mutant:merges-by-rank"):
    mistake = "merges are ordered by token ids instead of scores"
    shows_on = "llama-ties"
    size = 4

    def change(self, tokenizer: LlamaTokenizer) -> None:
        order = np.arange(tokenizer.vocabulary.n_vocab, dtype=np.int32)
        tokenizer.order = lambda: order  # type: ignore[method-assign]


class TiesToTheRight(WrongTokenizer, name="mutant:ties-to-the-right"):
    mistake = "among merges with the same score, the rightmost comes first"
    shows_on = "llama-ties"
    size = 4

    def change(self, tokenizer: LlamaTokenizer) -> None:
        segment = partial(slow_merges.ids, tokenizer, from_the_right=True)
        tokenizer.segment = segment  # type: ignore[method-assign]


class UnigramForLlama(WrongTokenizer, name="mutant:unigram-for-llama"):
    mistake = "the pieces with the best sum of scores are used instead of merges"
    shows_on = "llama-ties"
    size = 4

    def change(self, tokenizer: LlamaTokenizer) -> None:
        ids, scores = tokenizer.vocabulary.ids, tokenizer.vocabulary.scores

        def segment(text: bytes) -> list[int]:
            edges = list(accumulate(map(len, slow_merges.characters(text)), initial=0))
            # by end: best sum of scores, its begin, its ids
            best: dict[int, tuple[float, int, list[int]]] = {0: (0.0, 0, [])}
            for last, end in enumerate(edges[1:]):
                for start in edges[max(0, last - 12) : last + 1]:
                    token = ids.get(text[start:end])
                    found, score = [token or 0], scores[token or 0]
                    if token is None:
                        if start != edges[last]:
                            continue
                        found, score = [tokenizer.byte_token(b) for b in text[start:end]], -1e6
                    row = (best[start][0] + score, start, found)
                    best[end] = max(best.get(end, row), row, key=lambda r: r[0])
            pieces, at = [], len(text)
            while at:
                _, at, found = best[at]
                pieces.append(found)
            return [token for found in reversed(pieces) for token in found]

        tokenizer.segment = segment  # type: ignore[method-assign]


class NoByteFallback(WrongTokenizer, name="mutant:no-byte-fallback"):
    mistake = "the unknown token is used instead of spelling in bytes"
    shows_on = "llama"
    size = 2

    def change(self, tokenizer: LlamaTokenizer) -> None:
        tokenizer.byte_token = lambda byte: 0  # type: ignore[method-assign]


class DefaultPreTokenizer(WrongTokenizer, name="mutant:default-pre-tokenizer"):
    mistake = "the pre-tokenizer `default` is used instead of the named one"
    shows_on = "gpt2"
    size = 4

    def change(self, tokenizer: Gpt2Tokenizer) -> None:
        tokenizer.splitter = TextSplitter(PRE_TOKENIZERS["default"].expressions)


class AccentsKept(WrongTokenizer, name="mutant:accents-kept"):
    mistake = "accents are not stripped"
    shows_on = "bert"
    size = 3

    def change(self, tokenizer: BertTokenizer) -> None:
        tokenizer.strip_accents = False


class SpecialsParsed(WrongTokenizer, name="mutant:specials-parsed"):
    mistake = "texts of special tokens always become these tokens"
    shows_on = "gpt2"
    size = 13

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        return super().tokenize(texts, add_special=add_special, parse_special=True)


class BosDoubled(WrongTokenizer, name="mutant:bos-doubled"):
    mistake = "BOS is added twice"
    shows_on = "llama"
    size = 0

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        rows = super().tokenize(texts, add_special=add_special, parse_special=parse_special)
        bos = self.tokenizer.vocabulary.bos
        return [[*row[:1], *row] if row[:1] == [bos] else row for row in rows]


class PartsDropped(WrongTokenizer, name="mutant:partial-characters-dropped"):
    mistake = "an incomplete character is not written"
    shows_on = "gpt2"
    size = 1
    way = "decode"

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        texts = super().detokenize(
            ids, remove_special=remove_special, unparse_special=unparse_special
        )
        return [text.decode(errors="ignore").encode() for text in texts]


class SpacesKept(WrongTokenizer, name="mutant:spaces-kept"):
    mistake = "`▁` is written as it is stored"
    shows_on = "llama"
    size = 2
    way = "decode"

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        texts = super().detokenize(
            ids, remove_special=remove_special, unparse_special=unparse_special
        )
        return [text.replace(b" ", SPACE) for text in texts]


class BosMissing(WrongTokenizer, name="mutant:bos-missing"):
    mistake = "BOS is not put before a text"
    shows_on = "llama"
    size = 0

    def change(self, tokenizer: Tokenizer) -> None:
        tokenizer.vocabulary = replace(tokenizer.vocabulary, add_bos=False)


class EosMissing(WrongTokenizer, name="mutant:eos-missing"):
    mistake = "EOS is not put after a text, although the vocabulary asks for it"
    shows_on = "t5"
    size = 0

    def change(self, tokenizer: Tokenizer) -> None:
        tokenizer.vocabulary = replace(tokenizer.vocabulary, add_eos=False)


class MergesFromLeft(WrongTokenizer, name="mutant:merges-from-left"):
    """The fault of fastllm #715: pairs are merged from left to right."""

    mistake = "pairs are merged from left to right, whatever their rank"
    shows_on = "gpt2"
    size = 4

    def rank(self, merges: Collection[bytes], left: bytes, right: bytes) -> float | None:
        return 0 if left + b" " + right in merges else None

    def change(self, tokenizer: Gpt2Tokenizer) -> None:
        rank = partial(self.rank, frozenset(tokenizer.merges))

        def merged(words: Sequence[str]) -> list[list[int]]:
            raw = (word.encode("utf-8", "surrogatepass").decode("latin-1") for word in words)
            spelled = ([c.encode() for c in word.translate(CHARACTER_OF_BYTE)] for word in raw)
            known = tokenizer.vocabulary.ids
            parts = (slow_merges.merge_parts(word, rank) for word in spelled)
            return [[known[part] for part in word if part in known] for word in parts]

        tokenizer.known = Remembered(merged)


class MergesUnread(MergesFromLeft, name="mutant:merges-unread"):
    """The fault of quant.cpp #21: merges are not read from the file."""

    mistake = "merges are allocated but never read"
    shows_on = "gpt2"
    size = 2

    def rank(self, merges: Collection[bytes], left: bytes, right: bytes) -> float | None:
        return None


class TextChanged(WrongTokenizer):
    """A tokenizer that changes the text before it cuts it into tokens."""

    shows_on = "llama"

    def text(self, text: bytes) -> bytes:
        raise NotImplementedError

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        changed = [self.text(text) for text in texts]
        return super().tokenize(changed, add_special=add_special, parse_special=parse_special)


class SpacesMerged(TextChanged, name="mutant:spaces-merged"):
    mistake = "neighbouring spaces become one space"
    size = 2

    def text(self, text: bytes) -> bytes:
        while b"  " in text:
            text = text.replace(b"  ", b" ")
        return text


class TextStripped(TextChanged, name="mutant:text-stripped"):
    mistake = "spaces and newlines at the end of a text are cut off"
    size = 1

    def text(self, text: bytes) -> bytes:
        return text.rstrip(b" \n")


class Composed(TextChanged, name="mutant:text-composed"):
    """A tokenizer that composes characters first, although no file asks for it."""

    mistake = "letters and following accents are composed, as in NFC"
    size = 3

    def text(self, text: bytes) -> bytes:
        try:
            return unicodedata.normalize("NFC", text.decode()).encode()
        except UnicodeDecodeError:
            return text


class EndsAtNul(TextChanged, name="mutant:text-ends-at-nul"):
    mistake = "a text ends at its first NUL"
    size = 1

    def text(self, text: bytes) -> bytes:
        return text.partition(b"\0")[0]


class LeadingSpaceKept(WrongTokenizer, name="mutant:leading-space-kept"):
    mistake = "the space that was put before a text is written"
    shows_on = "llama"
    size = 2
    way = "decode"

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        pieces = self.tokenizer.piece
        return [b"".join(pieces(i, special=unparse_special) for i in row) for row in ids]


WRONG: dict[str, type[WrongTokenizer]] = {
    cls.name: cls
    for cls in sorted(
        (c for c in Adapter.family.values() if issubclass(c, WrongTokenizer)), key=lambda c: c.name
    )
}
