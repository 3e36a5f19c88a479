"""Grammars that wait for a word, a pattern or a token before they forbid tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import regex

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.samplers.grammar import Grammar

MAX_SECONDS = 2.0  # time limit for the search of a pattern


@dataclass(kw_only=True)
class TriggeredGrammar(Grammar):
    """A grammar for the text from the trigger on; trigger tokens belong to that text."""

    trigger_tokens: Sequence[int]
    waits: bool = field(default=True, init=False, repr=False)
    heard: tuple[int, ...] = field(default=(), init=False, repr=False)

    @property
    def patterns(self) -> Sequence[bytes]:
        """Return regular expressions; the grammar's text begins at the first group that matches."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        return super().is_open or self.waits

    def permits(self, token: int) -> bool:
        return self.goes_on_alike(token) if self.waits else super().permits(token)

    def accept(self, token: int) -> None:
        if not self.waits or not self.grammar_str:
            return super().accept(token)
        if token in self.trigger_tokens:
            self.begin()
            return self.read(token, self.known.spellings[token])
        self.heard = (*self.heard, token)
        words = [self.known.spellings[each] for each in self.heard]
        start = self.find_start(b"".join(words))
        if start is not None:
            heard = self.heard
            self.begin()
            self.replay(heard, words, start)
        return None

    def begin(self) -> None:
        self.waits, self.heard = False, ()
        self.state = self.reader.start()

    def find_start(self, text: bytes) -> int | None:
        for pattern in self.patterns:
            match = search(pattern, text)
            if match is not None:
                groups = range(1, len(match.groups()) + 1)
                return int(next((match.start(i) for i in groups if match.group(i)), match.start()))
        return None

    def replay(self, tokens: Sequence[int], words: Sequence[bytes], start: int) -> None:
        """Read the recorded tokens from byte `start` on; a token that contains this byte is read in
        part.
        """
        end = 0
        for token, word in zip(tokens, words, strict=True):
            begin, end = end, end + len(word)
            if end > start:
                self.read(token, word[max(0, start - begin) :])

    def reset(self) -> None:
        super().reset()
        self.waits, self.heard = True, ()


def search(pattern: bytes, text: bytes) -> "regex.Match[bytes] | None":
    """Search for the pattern. Raises InvalidGrammar if it is invalid or takes too long."""
    try:
        return regex.search(pattern, text, timeout=MAX_SECONDS)
    except regex.error as error:
        said = f"trigger {pattern!r} is not a valid regular expression: {error}"
        raise InvalidGrammar(said) from None
    except TimeoutError:
        raise InvalidGrammar(f"trigger {pattern!r} searches {MAX_SECONDS} s: simplify it") from None
