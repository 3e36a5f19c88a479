"""Rules as a table: places in sequences, each with its symbol and the place after it.

S{m,n} becomes m times S, then a chain of n - m rules that may be empty. S* becomes a rule that ends
with a reference to itself. The sizes of nested repetitions add up and never multiply.
"""

from collections.abc import Callable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.grammars.tree import (
    Alternatives,
    CharacterClass,
    Item,
    Repetition,
    RuleReference,
    Rules,
    TokenLiteral,
)

MAX_PLACES = 200_000
END = -1
Symbol = CharacterClass | TokenLiteral | int  # an int is the number of a rule
FindToken = Callable[[bytes], int]  # raises InvalidGrammar for an unknown token


class Place(NamedTuple):
    """A symbol in a sequence, and the place after it or END."""

    symbol: Symbol
    after: int


class GrammarTable:
    """Rules without names. Raises InvalidGrammar for undefined, oversized or endless rules."""

    def __init__(self, rules: Rules, root: str, find_token: FindToken) -> None:
        self.find_token = find_token
        self.places: list[Place] = []
        self.names = [*rules]  # by rule; rules made for repetitions have the name of their owner
        self.starts: list[list[int]] = [[] for _ in rules]  # by rule: places where it may begin
        self.repeats: set[int] = set()  # rules that end with themselves
        self.numbers = {name: i for i, name in enumerate(rules)}
        for name, choice in rules.items():
            self.fill(self.numbers[name], choice)
        self.root = self.number_of(root)
        self.refuse_left_recursion()

    def number_of(self, name: str) -> int:
        if name not in self.numbers:
            raise InvalidGrammar(f"grammar: there is no rule {name!r}: define it")
        return self.numbers[name]

    # --- from the tree -----------------------------------------------------------------------

    def add_rule(self, owner: int) -> int:
        self.names.append(self.names[owner])
        self.starts.append([])
        return len(self.names) - 1

    def fill(self, rule: int, choice: Alternatives) -> None:
        for sequence in choice.sequences:
            self.add_sequence(rule, self.all_symbols(rule, sequence))

    def all_symbols(self, owner: int, items: Sequence[Item]) -> list[Symbol]:
        found: list[Symbol] = []
        for item in items:
            found += self.symbols(owner, item)
            self.check_size(owner, len(found))
        return found

    def check_size(self, rule: int, more: int) -> None:
        if len(self.places) + len(self.names) + more > MAX_PLACES:
            raise InvalidGrammar(
                f"grammar, rule {self.names[rule]!r}: more than {MAX_PLACES} places: "
                "repeat less, or leave the upper end open"
            )

    def add_sequence(self, rule: int, symbols: list[Symbol]) -> None:
        self.check_size(rule, len(symbols))
        after = END
        for symbol in reversed(symbols):
            self.places.append(Place(symbol, after))
            after = len(self.places) - 1
        self.starts[rule].append(after)

    def symbols(self, owner: int, item: Item) -> list[Symbol]:
        match item:
            case CharacterClass():
                return [item]
            case TokenLiteral(token=bytes() as text):
                return [TokenLiteral(self.find_token(text), item.negated)]
            case TokenLiteral():
                return [item]
            case RuleReference():
                return [self.number_of(item.name)]
            case Alternatives(sequences=(sequence,)):
                return self.all_symbols(owner, sequence)
            case Alternatives():
                rule = self.add_rule(owner)
                self.fill(rule, item)
                return [rule]
        return self.repeat(owner, item)

    def repeat(self, owner: int, item: Repetition) -> list[Symbol]:
        symbol = self.one_symbol(owner, item.item)
        if item.most is None:
            rule = self.add_rule(owner)
            self.repeats.add(rule)
            self.add_sequence(rule, [symbol, rule])
            self.add_sequence(rule, [])
            return [*[symbol] * item.least, rule]
        rest: list[Symbol] = []
        for _ in range(item.most - item.least):
            rule = self.add_rule(owner)
            self.add_sequence(rule, [symbol, *rest])
            self.add_sequence(rule, [])
            rest = [rule]
        return [*[symbol] * item.least, *rest]

    def one_symbol(self, owner: int, item: Item) -> Symbol:
        symbols = self.symbols(owner, item)
        if len(symbols) == 1:
            return symbols[0]
        rule = self.add_rule(owner)
        self.add_sequence(rule, symbols)
        return rule

    # --- left recursion -----------------------------------------------------------------------

    def sequence_from(self, place: int) -> Iterator[Symbol]:
        while place != END:
            symbol, place = self.places[place]
            yield symbol

    def find_empty(self) -> set[int]:
        """Return the rules that match the empty text."""
        # by rule: sequences that are empty only if it is, as (rule, number of the sequence)
        users: dict[int, list[tuple[int, int]]] = {}
        todo, found = [], set[int]()
        needs: list[int] = []
        for rule, starts in enumerate(self.starts):
            for start in starts:
                symbols = [*self.sequence_from(start)]
                if all(isinstance(s, int) for s in symbols):
                    needs.append(len(symbols))
                    for symbol in symbols:
                        assert isinstance(symbol, int)
                        users.setdefault(symbol, []).append((rule, len(needs) - 1))
                    if not symbols:
                        todo.append(rule)
        while todo:
            rule = todo.pop()
            if rule in found:
                continue
            found.add(rule)
            for user, sequence in users.get(rule, ()):
                needs[sequence] -= 1
                if not needs[sequence]:
                    todo.append(user)
        return found

    def refuse_left_recursion(self) -> None:
        """Refuse left recursion. A repeated item that may be empty does not count as left
        recursion.
        """
        empty, first = self.find_empty(), dict[int, set[int]]()
        for rule, starts in enumerate(self.starts):
            held = first.setdefault(rule, set())
            for start in starts:
                for symbol in self.sequence_from(start):
                    if not isinstance(symbol, int):
                        break
                    held.add(symbol)
                    if symbol not in empty:
                        break
            if rule in self.repeats:
                held.discard(rule)
        try:
            TopologicalSorter(first).prepare()
        except CycleError as error:
            name = self.names[error.args[1][0]]
            raise InvalidGrammar(
                f"grammar, rule {name!r}: it begins with itself (left recursion): "
                "put another item before it, or repeat with * or +"
            ) from None
