"""Parts of a grammar, as parsed from its text."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

Range = tuple[int, int]  # first and last code point


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """Class of characters: any listed character, or (negated) any character that is not listed."""

    ranges: tuple[Range, ...]  # in order, with gaps in between
    negated: bool = False

    def contains(self, point: int) -> bool:
        return any(low <= point <= high for low, high in self.ranges) is not self.negated

    def meets(self, low: int, high: int) -> bool:
        """Return whether any character from low to high is in the class."""
        if self.negated:
            return not any(a <= low and high <= b for a, b in self.ranges)
        return any(a <= high and low <= b for a, b in self.ranges)


@dataclass(frozen=True, slots=True)
class TokenLiteral:
    """Token given by its id or by its text; negated: any token but this one."""

    token: int | bytes
    negated: bool = False

    def matches(self, token: int) -> bool:
        return (token == self.token) is not self.negated


@dataclass(frozen=True, slots=True)
class RuleReference:
    """A rule by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Choice among sequences; a literal is one sequence of characters."""

    sequences: tuple[tuple["Item", ...], ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """An item that is repeated."""

    item: "Item"
    least: int
    most: int | None  # None: no limit


Item = CharacterClass | TokenLiteral | RuleReference | Alternatives | Repetition
Rules = Mapping[str, Alternatives]
ANY = CharacterClass((), negated=True)


def class_of(ranges: Iterable[Range], *, negated: bool = False) -> CharacterClass:
    """Return a class of these ranges; reversed ranges are left out."""
    merged: list[Range] = []
    for low, high in sorted(r for r in ranges if r[0] <= r[1]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return CharacterClass(tuple(merged), negated)


def change_items(item: Item, change: Callable[[Item], Item]) -> Item:
    """Return a copy with `change` applied to each part, the inner parts first."""
    if isinstance(item, Alternatives):
        every = tuple(tuple(change_items(i, change) for i in seq) for seq in item.sequences)
        return change(Alternatives(every))
    if isinstance(item, Repetition):
        return change(replace(item, item=change_items(item.item, change)))
    return change(item)
