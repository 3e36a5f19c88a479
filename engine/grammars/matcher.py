"""Follows all readings of a text by a grammar, and finds the tokens that any reading allows next.

A reading is a stack of places, with the next symbol on top, and a partly read character. The empty
stack means that the whole grammar has been read. Stacks share their lower parts: a stack is the
number of a frame.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.grammars.table import END, GrammarTable, Symbol
from lockstep.engine.grammars.tree import CharacterClass, TokenLiteral
from lockstep.engine.grammars.utf8 import (
    CARRIED,
    WHOLE,
    Half,
    add_any_byte,
    add_byte,
    any_span_of,
    span_of,
)

MAX_READINGS = 20_000  # at the same time
MAX_FRAMES = 1_000_000  # in all stacks together
MAX_KEPT = 200_000  # number of results in the cache
ALL_READ = 0  # number of the empty stack
LITERAL, INNER_LITERAL = Half(0, -1), Half(0, -2)  # the literal of a token consumed all its bytes
K = TypeVar("K")
V = TypeVar("V")


class GrammarReading(NamedTuple):
    """Way to parse the text so far; an ambiguous grammar has several."""

    stack: int
    half: Half


State = frozenset[GrammarReading]
DEAD: State = frozenset()


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Points where llama.cpp differs from the definition; the defaults follow the definition."""

    any_bytes: bool = False  # True: bytes that are not UTF-8 count as characters
    # True: a negated class refuses an incomplete character that may become an excluded one
    half_negated: bool = False
    literal_inside: bool = False  # True: literals of tokens are also compared within a token
    # True: such literals refuse a token without a whole character
    literal_of_characters: bool = False
    end_inside: bool = False  # True: a text may end within a character


class WordOrder:
    """Tokens in the order of their bytes, so that a shared prefix is read only once."""

    def __init__(self, words: Sequence[bytes], ends: frozenset[int]) -> None:
        self.words = words
        self.ends = ends
        # token, word, number of bytes that it shares with the previous word
        self.sorted: list[tuple[int, bytes, int]] = []
        last = b""
        for word, token in sorted((word, i) for i, word in enumerate(words)):
            if not is_readable(word) or token in ends:
                continue
            self.sorted.append((token, word, shared_length(last, word)))
            last = word


def is_readable(word: bytes) -> bool:
    """Return whether a grammar can read the token: it is not empty and has no NUL."""
    return bool(word) and 0 not in word


def shared_length(a: bytes, b: bytes) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


class GrammarMatcher:
    """A grammar over a vocabulary. A state is a value, so the matcher itself remembers no text."""

    def __init__(self, table: GrammarTable, order: WordOrder) -> None:
        self.table, self.order = table, order
        self.frames: list[tuple[int, int]] = [(END, ALL_READ)]  # a place, and the stack below it
        self.numbers: dict[tuple[int, int], int] = {}
        self.opened: dict[int, frozenset[int]] = {}
        self.steps: dict[tuple[State, int, bool, Habits], State] = {}
        self.found: dict[tuple[State, Habits], NDArray[np.bool_]] = {}

    def start(self) -> State:
        stacks = set[int]()
        for place in self.table.starts[self.table.root]:
            stacks |= self.open(self.push(place, ALL_READ))
        return frozenset(GrammarReading(stack, WHOLE) for stack in stacks)

    # --- stacks --------------------------------------------------------------------------------

    def push(self, place: int, below: int) -> int:
        if place == END:
            return below
        number = self.numbers.setdefault((place, below), len(self.frames))
        if number == len(self.frames):
            if number >= MAX_FRAMES:
                raise InvalidGrammar(f"grammar: its readings need more than {MAX_FRAMES} places")
            self.frames.append((place, below))
        return number

    def top(self, stack: int) -> Symbol:
        return self.table.places[self.frames[stack][0]].symbol

    def pop(self, stack: int) -> frozenset[int]:
        """Return the stacks that are left after the symbol on top has been read."""
        place, below = self.frames[stack]
        return self.open(self.push(self.table.places[place].after, below))

    def open(self, stack: int) -> frozenset[int]:
        """Expand a stack into stacks that are empty, or have a character or a token on top."""
        if stack in self.opened:
            return self.opened[stack]
        todo, seen, found = [stack], set[int](), set[int]()
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            if len(seen) > MAX_READINGS:
                raise too_many()
            symbol = None if each == ALL_READ else self.top(each)
            if not isinstance(symbol, int):
                found.add(each)
                continue
            place, below = self.frames[each]
            rest = self.push(self.table.places[place].after, below)
            todo += [self.push(start, rest) for start in self.table.starts[symbol]]
        return keep(self.opened, stack, frozenset(found))

    # --- bytes ---------------------------------------------------------------------------------

    def step(self, state: State, byte: int, begins: bool, habits: Habits) -> State:
        """Return the state after a byte. begins: True for a token's first byte."""
        key = state, byte, begins, habits
        if key in self.steps:
            return self.steps[key]
        found = frozenset(
            after for each in state for after in self.move(each, byte, begins, habits)
        )
        if len(found) > MAX_READINGS:
            raise too_many()
        return keep(self.steps, key, found)

    def move(
        self, reading: GrammarReading, byte: int, begins: bool, habits: Habits
    ) -> Iterator[GrammarReading]:
        stack, half = reading
        if half.missing < 0:
            yield reading
            return
        symbol = None if stack == ALL_READ else self.top(stack)
        if isinstance(symbol, TokenLiteral) and begins:
            yield GrammarReading(stack, LITERAL)
            return
        if begins and half.missing and habits.any_bytes:
            half = Half(half.value, half.missing + CARRIED)
        after = (add_any_byte if habits.any_bytes else add_byte)(half, byte)
        if isinstance(after, Half):
            is_kept = isinstance(symbol, CharacterClass) or (
                not begins and (habits.literal_inside if symbol else habits.end_inside)
            )
            if is_kept:
                yield GrammarReading(stack, after)
        elif after is not None and isinstance(symbol, CharacterClass):
            if symbol.contains(after):
                yield from (GrammarReading(each, WHOLE) for each in self.pop(stack))
        elif after is not None and symbol is not None and habits.literal_inside:
            yield GrammarReading(stack, INNER_LITERAL)

    def read(self, state: State, word: bytes, habits: Habits) -> State:
        for i, byte in enumerate(word):
            state = self.step(state, byte, i == 0, habits)
        return state

    # --- tokens ---------------------------------------------------------------------------------

    def fits(self, reading: GrammarReading, token: int, half: Half, habits: Habits) -> bool:
        """Return whether a reading may end with this token. half: the partial character at its
        start."""
        stack, after = reading
        if after == WHOLE:
            return True
        symbol = None if stack == ALL_READ else self.top(stack)
        if isinstance(symbol, CharacterClass):
            span = (any_span_of if habits.any_bytes else span_of)(after)
            if habits.half_negated and symbol.negated:
                return span[0] <= span[1] and not CharacterClass(symbol.ranges).meets(*span)
            return span[0] <= span[1] and symbol.meets(*span)
        if not isinstance(symbol, TokenLiteral) or after.missing >= 0:
            return False
        if habits.literal_of_characters and not has_character(self.order.words[token], half):
            return False
        return symbol.matches(token)

    def take(self, state: State, token: int, word: bytes, habits: Habits) -> State:
        """Return the state after a token, DEAD if no reading continues. word: the token's bytes, or
        the part of them to read.
        """
        found = set[GrammarReading]()
        start = half_of(state)
        for reading in self.read(state, word, habits):
            if reading.half == LITERAL and self.fits(reading, token, start, Habits()):
                half = last_half(word, start) if habits.literal_of_characters else WHOLE
                found |= {GrammarReading(each, half) for each in self.pop(reading.stack)}
            elif reading.half.missing >= 0 and (
                habits.end_inside or self.fits(reading, token, start, habits)
            ):
                found.add(GrammarReading(reading.stack, drop_carry(reading.half)))
        return frozenset(found)

    def can_end(self, state: State, habits: Habits) -> bool:
        return any(
            each.stack == ALL_READ and (each.half == WHOLE or habits.end_inside) for each in state
        )

    def find_named(self, state: State) -> frozenset[int]:
        """Return the tokens that a literal names next."""
        tops = (self.top(each.stack) for each in state if each.stack != ALL_READ)
        return frozenset(
            int(top.token) for top in tops if isinstance(top, TokenLiteral) and not top.negated
        )

    def find_allowed(self, state: State, habits: Habits) -> NDArray[np.bool_]:
        """Return a mask of the tokens that may come next. (vocabulary,)"""
        key = state, habits
        if key in self.found:
            return self.found[key]
        start = half_of(state)
        fits = np.zeros(len(self.order.words), np.bool_)
        fits[[*self.order.ends]] = self.can_end(state, habits)
        states = [state]  # states after each byte of the current word
        for token, word, shared in self.order.sorted:
            if shared >= len(states):
                continue  # no reading accepts the shared part
            del states[shared + 1 :]
            for i in range(shared, len(word)):
                after = self.step(states[-1], word[i], i == 0, habits)
                if not after:
                    break
                states.append(after)
            else:
                fits[token] = any(self.fits(each, token, start, habits) for each in states[-1])
        return keep(self.found, key, fits, MAX_KEPT // len(fits) + 1)


def half_of(state: State) -> Half:
    """Return the partly read character of a state; in llama.cpp all readings share this
    character."""
    return max((each.half for each in state), default=WHOLE, key=lambda half: half.missing)


def drop_carry(half: Half) -> Half:
    return Half(half.value, half.missing % CARRIED)


def has_character(word: bytes, half: Half) -> bool:
    """Return whether llama.cpp finds a whole character in a token that it can read."""
    return bool(characters_of(word, half)[0])


def last_half(word: bytes, half: Half) -> Half:
    return characters_of(word, half)[1]


def characters_of(word: bytes, half: Half) -> tuple[int, Half]:
    """Return the number of characters that a token completes (0 if it is broken), and the partial
    character at its end."""
    half, n = Half(half.value, half.missing + (CARRIED if half.missing else 0)), 0
    for byte in word:
        after = add_any_byte(half, byte)
        if after is None:
            return 0, WHOLE
        n, half = (n, after) if isinstance(after, Half) else (n + 1, WHOLE)
    return n, drop_carry(half)


def too_many() -> InvalidGrammar:
    return InvalidGrammar(
        f"grammar: more than {MAX_READINGS} readings of one text: let its alternatives "
        "begin differently"
    )


def keep(held: dict[K, V], key: K, value: V, most: int = MAX_KEPT) -> V:
    """Cache a result. If `most` results are held already, drop them first."""
    if len(held) >= most:
        held.clear()
    held[key] = value
    return value
