"""Grammars that allow, forbid or remember wrong tokens."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.grammars.matcher import GrammarReading, Habits
from lockstep.engine.grammars.tree import (
    ANY,
    Alternatives,
    CharacterClass,
    Item,
    Repetition,
    change_items,
    class_of,
)
from lockstep.engine.grammars.utf8 import WHOLE
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.harness.mutants.parts.wrong_samplers import WrongSampler, right

add = WrongSampler.add_fault
NEWLINE = class_of([(10, 10)], negated=True)
LENGTHS = ((0xF0, 4), (0xE0, 3), (0xC0, 2))  # number of bytes of a character by its first byte
LESS_LIKELY = F(10)

# --- other grammars -------------------------------------------------------------------------------


def reads(change: Callable[[Item], Item]) -> Callable[..., Any]:
    """Return a method `rules` that applies `change` to every part of the grammar."""
    return lambda s: {
        name: change_items(choice, change) for name, choice in type(s).rules(s).items()
    }


def instead(kind: type[Any], change: Callable[[Any], Item]) -> Callable[..., Any]:
    return reads(lambda item: change(item) if isinstance(item, kind) else item)


def one_more(item: Repetition) -> Item:
    is_range = item.most is not None and item.most > 1
    return replace(item, most=item.most + 1) if is_range and item.most is not None else item


def at_least_one(item: Repetition) -> Item:
    return replace(item, least=1) if item.most is None and not item.least else item


def positive(item: CharacterClass) -> Item:
    return item if item == ANY else replace(item, negated=False)


add(
    "grammar-class-not-negated",
    "a negated class is read as the class",
    "grammar",
    rules=instead(CharacterClass, positive),
)
add(
    "grammar-one-more-time",
    "{m,n} accepts n + 1 repetitions",
    "grammar",
    rules=instead(Repetition, one_more),
)
add("grammar-star-is-plus", "* asks for one", "grammar", rules=instead(Repetition, at_least_one))
add(
    "grammar-dot-without-newline",
    "the point does not match a new line",
    "grammar",
    rules=reads(lambda item: NEWLINE if item == ANY else item),
)
add(
    "grammar-first-choice",
    "only the first of several choices is read",
    "grammar",
    rules=instead(Alternatives, lambda item: Alternatives(item.sequences[:1])),
)
add(
    "grammar-root-is-first",
    "the first rule is used as the root",
    "grammar",
    rules=lambda s: (found := type(s).rules(s)) | {"root": next(iter(found.values()))},
)

# --- other tokens ---------------------------------------------------------------------------------


def open_on_error(sampler: Any, c: CandidateList) -> CandidateList:
    try:
        return right(sampler, c)
    except InvalidGrammar:
        return c


def open_when_stuck(sampler: Any, c: CandidateList) -> CandidateList:
    found = right(sampler, c)
    return found if np.isfinite(found.logits).any() else c


def only_whole(sampler: Any) -> Any:
    def is_whole(word: bytes) -> bool:
        return word.decode(errors="replace").encode() == word

    whole = np.array([is_whole(word) for word in sampler.known.spellings])
    return type(sampler).find_allowed(sampler) & whole


def with_ends(value: bool) -> Callable[..., Any]:
    def allowed(sampler: Any) -> Any:
        found = type(sampler).find_allowed(sampler).copy()
        found[[*sampler.known.ends]] = value
        return found

    return allowed


def first_character(sampler: Any) -> Any:
    found, reader = type(sampler).find_allowed(sampler).copy(), sampler.reader
    for token, word, _ in reader.order.sorted:
        n = next((n for lead, n in LENGTHS if word[0] >= lead), 1)
        found[token] |= bool(reader.read(sampler.state, word[:n], Habits()))
    return found


def less_likely(sampler: Any, c: CandidateList) -> CandidateList:
    found = right(sampler, c)
    return found.change(logits=np.where(found.logits == -np.inf, c.logits - LESS_LIKELY, c.logits))


def forget_half(sampler: Any, token: int) -> None:
    type(sampler).accept(sampler, token)
    sampler.state = frozenset(GrammarReading(each.stack, WHOLE) for each in sampler.state)


add(
    "grammar-open-on-error",
    "an invalid grammar forbids nothing",
    "grammar",
    apply=open_on_error,
)
add(
    "grammar-open-when-stuck",
    "if all tokens would be forbidden, none is",
    "grammar",
    apply=open_when_stuck,
)
add(
    "grammar-whole-characters",
    "a token that ends within a character is forbidden",
    "grammar",
    "llama.cpp #2501",
    find_allowed=only_whole,
)
add(
    "grammar-always-ends",
    "the end of the text is allowed everywhere",
    "grammar",
    "vllm #52146",
    find_allowed=with_ends(True),
)
add(
    "grammar-never-ends",
    "the end of the text is forbidden",
    "grammar",
    find_allowed=with_ends(False),
)
add(
    "grammar-first-character",
    "only the first character of a token is read",
    "grammar",
    find_allowed=first_character,
)
add("grammar-only-less-likely", "10 is subtracted from the logits", "grammar", apply=less_likely)
add("grammar-never-moves", "accepted tokens are not read", "grammar", accept=lambda s, token: None)
add(
    "grammar-forgets-half",
    "half a character is forgotten after its token",
    "grammar",
    accept=forget_half,
)

# --- grammars that wait ---------------------------------------------------------------------------


def never_wait(sampler: Any, c: CandidateList) -> CandidateList:
    if sampler.waits:
        sampler.begin()
    return right(sampler, c)


def hear_last(sampler: Any, text: bytes) -> int | None:
    last = sampler.known.spellings[sampler.heard[-1]]
    found = type(sampler).find_start(sampler, last)
    return None if found is None else len(text) - len(last) + found


add("grammar-lazy-never-waits", "the grammar begins at once", "grammar_lazy", apply=never_wait)
add(
    "grammar-lazy-without-word",
    "the trigger is not part of the text",
    "grammar_lazy",
    replay=lambda s, tokens, words, start: None,
)
add(
    "grammar-lazy-whole-tokens",
    "the token that contains the trigger is read from its beginning",
    "grammar_lazy",
    replay=lambda s, tokens, words, start: type(s).replay(s, tokens[-1:], words[-1:], 0),
)
add(
    "grammar-patterns-never-begin",
    "patterns are not searched for",
    "grammar_lazy_patterns",
    find_start=lambda s, text: None,
)
add(
    "grammar-patterns-in-tokens",
    "patterns are searched for only within single tokens",
    "grammar_lazy_patterns",
    find_start=hear_last,
)
