"""Texts and roles of tokens for samplers, from our tokenizer."""

from collections.abc import Collection
from functools import cached_property

from lockstep.engine.tokenizers.base import Tokenizer


class TokenizerWords:
    """A vocabulary for samplers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def pieces(self) -> list[bytes]:
        return self.tokenizer.pieces_of(range(len(self.tokenizer.pieces)), special=False)

    @cached_property
    def words(self) -> list[bytes]:
        every = range(len(self.tokenizer.pieces))
        return [self.tokenizer.decode([token], unparse_special=True) for token in every]

    @cached_property
    def spellings(self) -> list[bytes]:
        return self.tokenizer.pieces_of(range(len(self.tokenizer.pieces)), special=True)

    @property
    def ends(self) -> Collection[int]:
        return self.tokenizer.vocabulary.eog

    @property
    def end_of_turn(self) -> int | None:
        turn = self.tokenizer.vocabulary.roles["eot"]
        return self.tokenizer.vocabulary.eos if turn is None else turn

    def tokenize(self, text: bytes) -> list[int]:
        return self.tokenizer.encode(text, add_special=False)

    def find_special(self, text: bytes) -> int | None:
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None
