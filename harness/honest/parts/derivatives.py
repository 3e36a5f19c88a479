"""Grammars matched without a table. After each character, the matcher computes the remaining rules.

A remainder is a tuple of the parts that must still match. A repetition's count decreases with each
match. Python decodes the text of each token separately. If a token ends inside a character, the
bytes of the incomplete character are kept.
"""

import codecs
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.grammars.tree import (
    Alternatives,
    CharacterClass,
    Item,
    Repetition,
    RuleReference,
    Rules,
    TokenLiteral,
)

Remainder = tuple[Item, ...]
Left = frozenset[tuple[Remainder, bytes]]  # remainders, and the bytes of an incomplete character
NAME = "left_by_derivatives"
FIRST_TAILS = {0xE0: 0xA0, 0xF0: 0x90}  # least second byte after these first bytes
LAST_TAILS = {0xED: 0x9F, 0xF4: 0x8F}  # largest second byte after these first bytes


class Derivatives:
    """The rules of a grammar, and the remainders after each character."""

    def __init__(self, rules: Rules, root: str, sampler: Any) -> None:
        self.rules, self.find_token = rules, sampler.find_token
        self.start: Left = frozenset((each, b"") for each in self.heads((RuleReference(root),)))
        self.memory: dict[tuple[Remainder, str], frozenset[Remainder]] = {}

    def heads(self, remainder: Remainder) -> frozenset[Remainder]:
        """Return all ways to read a remainder so that it begins with a character or a token, or is
        empty."""
        todo, seen, found = [remainder], set[Remainder](), set[Remainder]()
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            match each:
                case (RuleReference(name=name), *rest):
                    todo.append((self.rules[name], *rest))
                case (Alternatives(sequences=sequences), *rest):
                    todo += [(*sequence, *rest) for sequence in sequences]
                case (Repetition(item=item, least=least, most=most), *rest):
                    if not least:
                        todo.append(tuple(rest))
                    if most != 0:
                        fewer = None if most is None else most - 1
                        todo.append((item, Repetition(item, max(least - 1, 0), fewer), *rest))
                case _:
                    found.add(each)
        return frozenset(found)

    def behind(self, remainder: Remainder, character: str) -> frozenset[Remainder]:
        key = remainder, character
        if key not in self.memory:
            head = remainder[0] if remainder else None
            fits = isinstance(head, CharacterClass) and head.contains(ord(character))
            self.memory[key] = self.heads(remainder[1:]) if fits else frozenset()
        return self.memory[key]

    def read(self, left: Left, token: int, word: bytes) -> Left:
        found = set[tuple[Remainder, bytes]]()
        for remainder, half in left:
            match remainder:
                case (TokenLiteral() as literal, *rest):
                    if not half and self.names(literal, token):
                        found |= {(each, b"") for each in self.heads(tuple(rest))}
                    continue
            decoder = codecs.getincrementaldecoder("utf-8")()
            try:
                text = decoder.decode(half + word)
            except UnicodeDecodeError:
                continue
            ahead = {remainder}
            for character in text:
                ahead = {after for each in ahead for after in self.behind(each, character)}
            rest_bytes = decoder.getstate()[0]
            found |= {(each, rest_bytes) for each in ahead if may_go_on(each, rest_bytes)}
        return frozenset(found)

    def names(self, literal: TokenLiteral, token: int) -> bool:
        text = literal.token
        wanted = self.find_token(text) if isinstance(text, bytes) else text
        return (token == wanted) is not literal.negated


def may_go_on(remainder: Remainder, half: bytes) -> bool:
    """Return True if the remainder allows a character whose UTF-8 form begins with these bytes."""
    if not half:
        return True
    head = remainder[0] if remainder else None
    try:
        return isinstance(head, CharacterClass) and head.meets(*ends_of(half))
    except UnicodeDecodeError:  # a surrogate, which Python refuses only when it is complete
        return False


def ends_of(half: bytes) -> tuple[int, int]:
    """Return the lowest and the highest character whose UTF-8 forms begin with these bytes."""
    lead = half[0]
    n = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    ends = []
    for tails, usual in ((FIRST_TAILS, 0x80), (LAST_TAILS, 0xBF)):
        whole = half if len(half) > 1 else half + bytes([tails.get(lead, usual)])
        ends.append(ord((whole + bytes([usual]) * (n - len(whole))).decode()))
    return ends[0], ends[1]


def derivatives_of(sampler: Any) -> Derivatives:
    held = vars(sampler)
    if NAME not in held:
        made = Derivatives(sampler.rules(), sampler.grammar_root, sampler)
        held[NAME] = made
        held["left"] = made.start
    found: Derivatives = held[NAME]
    return found


def read_by_derivatives(sampler: Any, token: int, word: bytes) -> None:
    made = derivatives_of(sampler)
    vars(sampler)["left"] = made.read(vars(sampler)["left"], token, word)
    type(sampler).read(sampler, token, word)


def begin_by_derivatives(sampler: Any) -> None:
    vars(sampler)["left"] = derivatives_of(sampler).start
    type(sampler).begin(sampler)


def allowed_by_derivatives(sampler: Any) -> NDArray[np.bool_]:
    made, known = derivatives_of(sampler), sampler.known
    left: Left = vars(sampler)["left"]
    return np.array(
        [
            ((), b"") in left
            if token in known.ends
            else bool(word) and 0 not in word and bool(made.read(left, token, word))
            for token, word in enumerate(known.spellings)
        ]
    )
