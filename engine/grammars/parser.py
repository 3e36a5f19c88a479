"""Parses GBNF text into rules. It accepts llama.cpp's notation, and errors name their place."""

import re
from collections.abc import Mapping

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.grammars.tree import (
    ANY,
    Alternatives,
    CharacterClass,
    Item,
    Range,
    Repetition,
    RuleReference,
    Rules,
    TokenLiteral,
    class_of,
)

MAX_TEXT_BYTES = 1 << 20
MAX_DEPTH = 100  # depth of nested groups
MAX_TIMES = 100_000  # maximum of a repetition
LAST_POINT = 0x10FFFF
SHOWN = 20  # characters of a grammar that an error shows

NAME = re.compile(r"[A-Za-z0-9-]+")
NUMBER = re.compile(r"[0-9]+")
SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
SPACES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
LINE_END = re.compile(r"\r\n|\r|\n|\Z")
ESCAPES: Mapping[str, str] = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    **{each: each for each in '\\"[]-'},
}
HEX_DIGITS: Mapping[str, int] = {"x": 2, "u": 4, "U": 8}
TIMES: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_grammar(text: str) -> Rules:
    """Return the rules by name; if two rules share a name, the last one. Raises InvalidGrammar."""
    if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise InvalidGrammar(f"a grammar of more than {MAX_TEXT_BYTES} bytes: make it shorter")
    return GrammarParser(text).parse()


class GrammarParser:
    """A text and the position of the next character to read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def parse(self) -> dict[str, Alternatives]:
        rules: dict[str, Alternatives] = {}
        self.skip(SPACES)
        while self.at < len(self.text):
            name = self.take(NAME, "a rule's name")
            self.skip(SPACE)
            self.expect("::=")
            self.skip(SPACES)
            rules[name] = self.choice()
            self.take(LINE_END, "a new line, or the end")
            self.skip(SPACES)
        if not rules:
            raise self.error("a rule")
        return rules

    # --- the text ----------------------------------------------------------------------------

    def error(self, expected: str) -> InvalidGrammar:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        got = repr(self.text[self.at : self.at + SHOWN]) if self.at < len(self.text) else "the end"
        return InvalidGrammar(
            f"grammar, line {line}, column {column}: expected {expected}, got {got}"
        )

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def skip_inside(self) -> None:
        """Skip spaces, and inside groups also new lines."""
        self.skip(SPACES if self.depth else SPACE)

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.error(expected)
        self.at = match.end()
        return match.group()

    def takes(self, sign: str) -> bool:
        found = self.text.startswith(sign, self.at)
        self.at += len(sign) if found else 0
        return found

    def expect(self, sign: str) -> None:
        if not self.takes(sign):
            raise self.error(repr(sign))

    @property
    def sign(self) -> str:
        return self.text[self.at : self.at + 1]

    # --- its parts -----------------------------------------------------------------------------

    def choice(self) -> Alternatives:
        sequences = [self.sequence()]
        while self.takes("|"):
            self.skip(SPACES)
            sequences.append(self.sequence())
        return Alternatives(tuple(sequences))

    def sequence(self) -> tuple[Item, ...]:
        items: list[Item] = []
        while True:
            if self.sign and self.sign in "*+?{":
                if not items:
                    raise self.error("something to repeat")
                items[-1] = self.repetition(items[-1])
            elif (item := self.item()) is not None:
                items.append(item)
            else:
                return tuple(items)
            self.skip_inside()

    def item(self) -> Item | None:
        """Return the item at this place; None if there is none."""
        if self.takes('"'):
            return self.literal()
        if self.takes("["):
            return self.character_class()
        if self.takes("."):
            return ANY
        if self.takes("("):
            return self.group()
        if self.sign and self.sign in "<!":
            return self.token()
        match = NAME.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return RuleReference(match.group())

    def group(self) -> Alternatives:
        if self.depth == MAX_DEPTH:
            raise self.error(f"at most {MAX_DEPTH} nested groups")
        self.depth += 1
        self.skip(SPACES)
        found = self.choice()
        self.expect(")")
        self.depth -= 1
        return found

    def literal(self) -> Alternatives:
        points: list[int] = []
        while not self.takes('"'):
            points.append(self.character())
        return Alternatives((tuple(CharacterClass(((each, each),)) for each in points),))

    def character_class(self) -> CharacterClass:
        negated, ranges = self.takes("^"), list[Range]()
        while not self.takes("]"):
            low = high = self.character()
            if self.sign == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self.character()
            ranges.append((low, high))
        if not ranges:
            raise self.error("a character between [ and ]")
        return class_of(ranges, negated=negated)

    def character(self) -> int:
        if not self.takes("\\"):
            if not self.sign or self.sign == "\0":
                raise self.error("a character")
            self.at += 1
            return ord(self.text[self.at - 1])
        sign = self.sign
        if sign in HEX_DIGITS:
            self.at += 1
            n = HEX_DIGITS[sign]
            point = int(
                self.take(re.compile(rf"[0-9a-fA-F]{{{n}}}"), f"{n} hexadecimal digits"), 16
            )
            if point > LAST_POINT:
                raise self.error(f"a code point up to {LAST_POINT:X}, before this")
            return point
        if sign not in ESCAPES:
            raise self.error('one of n r t x u U \\ " [ ] -')
        self.at += 1
        return ord(ESCAPES[sign])

    def token(self) -> TokenLiteral:
        negated = self.takes("!")
        start = self.at
        self.expect("<")
        if self.takes("["):
            token = self.number(MAX_TIMES * MAX_TIMES)
            self.expect("]")
            self.expect(">")
            return TokenLiteral(token, negated)
        end = self.text.find(">", self.at)
        if end < 0:
            raise self.error("a token's text, and '>'")
        self.at = end + 1
        return TokenLiteral(self.text[start : self.at].encode(), negated)

    def number(self, most: int) -> int:
        start = self.at
        digits = self.take(NUMBER, "a number")
        if len(digits) > len(str(most)) or int(digits) > most:
            self.at = start
            raise self.error(f"a number up to {most}")
        return int(digits)

    def repetition(self, item: Item) -> Repetition:
        sign = self.sign
        self.at += 1
        if sign in TIMES:
            return Repetition(item, *TIMES[sign])
        self.skip_inside()
        least = self.number(MAX_TIMES)
        most: int | None = least
        self.skip_inside()
        if self.takes(","):
            self.skip_inside()
            most = self.number(MAX_TIMES) if NUMBER.match(self.text, self.at) else None
            self.skip_inside()
        if most is not None and most < least:
            raise self.error(f"a number of at least {least}, before this")
        self.expect("}")
        return Repetition(item, least, most)
