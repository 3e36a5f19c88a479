"""grammar: forbids tokens that no reading of a grammar allows next."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.grammars.matcher import (
    DEAD,
    GrammarMatcher,
    Habits,
    State,
    WordOrder,
    half_of,
)
from lockstep.engine.grammars.parser import parse_grammar
from lockstep.engine.grammars.table import GrammarTable
from lockstep.engine.grammars.tree import Rules
from lockstep.engine.samplers.base import ReadingSampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.engine.samplers.parts.ways import DEFINITION, Accident, Ways

HABITS: dict[str, Accident] = {
    "any_bytes": Accident.GRAMMAR_ANY_BYTES,
    "half_negated": Accident.GRAMMAR_HALF_NEGATED,
    "literal_inside": Accident.GRAMMAR_LITERAL_INSIDE,
    "literal_of_characters": Accident.GRAMMAR_LITERAL_BYTES,
    "end_inside": Accident.GRAMMAR_END_INSIDE,
}


@dataclass(kw_only=True)
class Grammar(ReadingSampler, name="grammar"):
    grammar_str: str  # empty: no restriction
    grammar_root: str
    matcher: GrammarMatcher | None = field(default=None, init=False, repr=False)
    state: State = field(default=DEAD, init=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Return whether no token is forbidden now."""
        return not self.grammar_str

    @property
    def reader(self) -> GrammarMatcher:
        """Return the grammar's matcher; the first call parses the grammar. Raises
        InvalidGrammar."""
        if self.matcher is None:
            words = WordOrder(self.known.spellings, frozenset(self.known.ends))
            table = GrammarTable(self.rules(), self.grammar_root, self.find_token)
            self.matcher = GrammarMatcher(table, words)
            self.state = self.matcher.start()
        return self.matcher

    def rules(self) -> Rules:
        return parse_grammar(self.grammar_str)

    def find_token(self, text: bytes) -> int:
        token = self.known.find_special(text)
        if token is None:
            raise InvalidGrammar(f"grammar: {text!r} is not one token: use its id, as in <[5]>")
        return token

    def apply(self, c: CandidateList) -> CandidateList:
        """Set the logits of forbidden tokens to minus infinity; change no other logits."""
        if self.is_open:
            return c
        logits = np.where(self.find_allowed()[c.ids], c.logits, F(-np.inf))
        keeps = Accident.STALE_SORTED in self.ways.accidents
        return c.change(logits=logits, sorted=c.sorted and keeps)

    def find_allowed(self) -> NDArray[np.bool_]:
        """Return a mask of the tokens that may come next. (vocabulary,)"""
        reader = self.reader
        return reader.find_allowed(self.state, habits_of(self.ways))

    def find_spelled(self) -> NDArray[np.bool_]:
        """Return a mask of the control tokens that are allowed only by their spelling.
        (vocabulary,)
        """
        named, known = self.reader.find_named(self.state), self.known
        is_control = [
            bool(spelled) and not piece and token not in named and token not in known.ends
            for token, (piece, spelled) in enumerate(
                zip(known.pieces, known.spellings, strict=True)
            )
        ]
        return self.find_allowed() & np.array(is_control, np.bool_)

    def permits(self, token: int) -> bool:
        may = self.is_open or bool(self.find_permitted()[token])
        return may and self.goes_on_alike(token)

    def goes_on_alike(self, token: int) -> bool:
        """Return whether the text can continue after a token, with the same partly read character,
        in the definition and in these ways.
        """
        if not self.grammar_str:
            return True
        halves = set()
        for ways in (DEFINITION, self.ways):
            after = self.clone()
            after.ways = ways
            after.accept(token)
            if not (after.is_open or after.state):
                return False
            halves.add(half_of(after.state))
        return len(halves) == 1

    def find_permitted(self) -> NDArray[np.bool_]:
        """Return a mask of the tokens that both the definition and these ways allow.
        (vocabulary,)"""
        reader = self.reader
        ours, theirs = (
            reader.find_allowed(self.state, habits_of(w)) for w in (DEFINITION, self.ways)
        )
        return ours & theirs

    def accept(self, token: int) -> None:
        """Accept a token; an allowed end-of-generation token changes nothing."""
        if self.is_open:
            return
        reader, habits = self.reader, habits_of(self.ways)
        if token in self.known.ends:
            self.state = self.state if reader.can_end(self.state, habits) else DEAD
        else:
            self.read(token, self.known.spellings[token])

    def read(self, token: int, word: bytes) -> None:
        reader = self.reader
        self.state = reader.take(self.state, token, word, habits_of(self.ways))

    def reset(self) -> None:
        if self.matcher is not None:
            self.state = self.matcher.start()


def habits_of(ways: Ways) -> Habits:
    return Habits(**{name: each in ways.accidents for name, each in HABITS.items()})
