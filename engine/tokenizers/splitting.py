r"""Splits a text into words by an expression, then splits each part by the next expression, and so
on.

An expression that names categories such as \p{L} sees the text with every code point beyond ASCII
replaced by a stand-in for its category, as in llama.cpp. There \p{Lu} is any letter, and the result
does not depend on Python's tables. Other expressions see the text itself, except white space beyond
ASCII. In both kinds of expressions, \s, \d and case-insensitive matching mean ASCII. Text between
matches is a part as well.

Source: unicode_regex_split and the hand-written splitters in src/unicode.cpp of llama-cpp-python
0.3.36. All but two of those splitters are equivalent to an expression in pre_tokenizers.py.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import accumulate, chain, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.tokenizers.unicode_data import WHITESPACE, categories

# characters that stand for code points beyond ASCII
SPACE, OTHER, HAN_OTHER, LETTER, HAN_LETTER = "\v¬¦ªº"
# OTHER stands for all remaining code points
STAND_INS = {"N": "¹", "L": LETTER, "P": "¿", "M": "¨", "S": "±"}

# members of \p{...} within brackets: characters that stand for others, and ASCII
ANY_LETTER = r"ªºA-Za-z"
MEMBERS = {
    "N": "¹0-9",
    "L": ANY_LETTER,
    "P": r"¿!-#%-*,\-./:;?@\[\\\]_{}",
    "M": "¨",
    "S": r"±$+<=>\^`|~",
    "Han": "º¦",
    "L-Han": "ªA-Za-z",
    "L-ASCII": "ªº",
} | dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo"), ANY_LETTER)

# llama.cpp's own list, which also contains code points that are no letters
HAN = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2EBEF),
       (0x2F800, 0x2FA1F))  # fmt: skip

WIDE_SPACE = re.compile("[" + "".join(chr(code) for code in WHITESPACE if code > 0x7F) + "]")
ATOM = re.compile(r"\\p\{([^}]+)\}|\\.|[\[\]]|[^\\\[\]]+", re.DOTALL)

# splitters of digits into groups of three from the right, under llama.cpp's expressions
AFMOE_DIGITS = r"\p{AFMoE_digits}"
TINY_AYA_DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"
SUPERBPE_DIGITS = r"(?=(\d{3})+(?!\d))"

T = TypeVar("T")
Cut = Callable[[str], list[str]]  # returns the parts of a string in order


class Remembered(dict[str, list[T]]):
    """Cache of a function's results for words, because a text has few distinct words, mostly
    short."""

    LONGEST, MOST = 64, 1 << 18

    def __init__(self, compute: Callable[[list[str]], Iterable[list[T]]]) -> None:
        self.compute = compute

    def over(self, words: Iterable[str]) -> list[T]:
        """Return the results for all words, concatenated."""
        words = list(words)
        new = [word for word in dict.fromkeys(words) if word not in self]
        self.update(zip(new, self.compute(new) if new else (), strict=True))
        made = list(chain.from_iterable(map(self.__getitem__, words)))
        for word in new:
            if len(word) > self.LONGEST:
                del self[word]
        if len(self) > self.MOST:
            self.clear()
        return made


class TextSplitter:
    """Cuts a text by a list of expressions."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self.stages = tuple(
            (r"\p{" in each or each == TINY_AYA_DIGITS, Remembered(partial(map, cut_by(each))))
            for each in expressions
        )

    def words(self, text: str) -> list[str]:
        """Return the words of a text; their concatenation is the text."""
        if text.isascii():  # ASCII text needs no replacement
            words = [text]
            for _, parts in self.stages:
                words = parts.over(words)
            return words
        collapsed, wide = collapse(text), WIDE_SPACE.sub(SPACE, text)
        sizes = [len(text)]
        for by_category, parts in self.stages:
            view = collapsed if by_category else wide
            sizes = list(map(len, parts.over(slices(view, sizes))))
        return slices(text, sizes)


def slices(text: str, sizes: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]


@cache
def stand_ins() -> NDArray[np.uint8]:
    """Return the stand-in of each code point, as Latin-1."""
    table = np.full(0x110000, ord(OTHER), np.uint8)
    for category, stand_in in STAND_INS.items():
        table[categories() == ord(category)] = ord(stand_in)
    for first, last in HAN:
        part = table[first : last + 1]  # the slice is a view of `table`
        part[:] = np.where(part == ord(LETTER), ord(HAN_LETTER), ord(HAN_OTHER))
    table[list(WHITESPACE)] = ord(SPACE)
    table[:0x80] = range(0x80)
    return table


def collapse(text: str) -> str:
    """Return `text` with a stand-in for each code point beyond ASCII."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    collapsed: bytes = stand_ins()[codes].tobytes()
    return collapsed.decode("latin-1")


@cache
def cut_by(expression: str) -> Cut:
    """Return llama.cpp's split function for one of its expressions."""
    if expression in (AFMOE_DIGITS, TINY_AYA_DIGITS):
        return cut_numbers
    if expression == SUPERBPE_DIGITS:
        return cut_thousands
    pattern = re.compile(expand(expression), re.ASCII)
    gaps_too = re.compile(f"({pattern.pattern})", re.ASCII)

    def cut(text: str) -> list[str]:
        found: list[str] = pattern.findall(text)
        if sum(map(len, found)) < len(text):
            found = [part for part in gaps_too.split(text) if part]
        return found

    return cut


def expand(expression: str) -> str:
    r"""Return the expression with members for each \p{...}."""
    written, inside = "", False
    for atom in ATOM.finditer(expression):
        text = atom[0]
        if atom[1]:
            text = MEMBERS[atom[1]] if inside else f"[{MEMBERS[atom[1]]}]"
        elif text in ("[", "]"):
            inside = text == "["
        written += text
    return written


NUMBERS = re.compile(f"[{MEMBERS['N']}]+")
DIGITS = re.compile("[0-9]+")


def cut_numbers(collapsed: str) -> list[str]:
    """Split numbers into groups of three digits from the right; text before a number stays with its
    first group.
    """
    ends = [
        end
        for run in NUMBERS.finditer(collapsed)
        for end in range(run.start() + (len(run[0]) % 3 or 3), run.end() + 1, 3)
    ]
    return cut_at(collapsed, ends)


def cut_thousands(wide: str) -> list[str]:
    """Split runs of ASCII digits into groups of three from the right; text around a run stays
    attached.
    """
    starts = [
        start
        for run in DIGITS.finditer(wide)
        for start in range(run.start() + len(run[0]) % 3, run.end(), 3)
    ]
    return cut_at(wide, starts)


def cut_at(text: str, places: list[int]) -> list[str]:
    parts = (text[start:end] for start, end in pairwise([0, *places, len(text)]))
    return [part for part in parts if part]
