"""A campaign on two tokenizers with one vocabulary: it compares many inputs, and shrinks
differences."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from typing import Any

from lockstep.harness.fuzzers.tokens.ask import Failure, TextAsker
from lockstep.harness.fuzzers.tokens.shrink import order, shrink_input
from lockstep.harness.judging.no_characters import is_utf8

MOST_FOUND = 10  # kinds of difference that are listed for one vocabulary
MOST_SHRUNK = 40  # inputs that are shrunk to determine their kind
CONFIRMED = 3  # inputs refused by one engine for which the other engine is asked too
FLAGS = tuple(product((False, True), (False, True)))
QUESTIONS = {
    "encode": ("tokenize", ("add_special", "parse_special")),
    "decode": ("detokenize", ("remove_special", "unparse_special")),
}
Flags = tuple[bool, bool]


@dataclass(frozen=True, kw_only=True)
class TextDifference:
    """A shrunk input on which the engines differ."""

    way: str  # encode or decode
    flags: Flags
    given: Any  # bytes, or a tuple of ids
    expected: Any  # ids, bytes or a Failure
    actual: Any
    case: int  # number of the first case with this difference

    @property
    def status(self) -> str:
        """Return the status of the oracle's failure if the oracle fails, otherwise "diverged"."""
        return self.expected.status if isinstance(self.expected, Failure) else "diverged"

    @property
    def deadly(self) -> bool:
        return is_deadly(self.expected) or is_deadly(self.actual)

    @property
    def shape(self) -> str:
        """Return the kinds of the input's characters, with runs as one (`Ll Zs Mn`), or the number
        of ids. Differences in the same direction and with the same shape are counted as one."""
        if isinstance(self.given, tuple):
            return f"{len(self.given)} ids"
        text = self.given.decode("utf-8", "surrogateescape")
        kinds = [kind for kind, _ in groupby(map(unicodedata.category, text))]
        return " ".join(kinds) or "empty"


@dataclass(kw_only=True)
class TextCampaign:
    """Compares inputs, and keeps the findings. `refuser`: the engine whose failures are cheap; None
    if there is no such engine."""

    subject: TextAsker
    oracle: TextAsker
    refuser: TextAsker | None = None
    legal: Callable[[Any], bool] = lambda _: True  # returns True for inputs that shrinking may try
    utf8_only: bool = False  # True: an engine accepts only UTF-8, so other texts are left out
    left_out: int = 0
    found: list[TextDifference] = field(default_factory=list)
    more: int = 0  # inputs with a difference that is listed already, or that came after MOST_FOUND
    shrinks: int = 0
    texts: int = 0
    runs: int = 0
    refused: int = 0  # number of inputs that the refuser refuses
    refused_texts: int = 0  # number of texts among them
    confirmed: list[tuple[str, Any, Failure, Failure]] = field(default_factory=list)

    def encode(self, cases: Sequence[tuple[int, bytes]], flags: Flags) -> list[tuple[int, Any]]:
        """Compare texts. Return the oracle's ids by case, which are decoded later."""
        if self.utf8_only:
            whole = [row for row in cases if is_utf8(row[1])]
            self.left_out += len(cases) - len(whole)
            cases = whole
        self.texts += len(cases)
        before = self.refused
        answers = self.compare("encode", cases, flags)
        self.refused_texts += self.refused - before
        return [(at, tuple(ids)) for at, ids in answers if not isinstance(ids, Failure)]

    def decode(self, cases: Sequence[tuple[int, tuple[int, ...]]], flags: Flags) -> None:
        before = self.left_out
        self.compare("decode", cases, flags)
        self.runs += len(cases) - (self.left_out - before)

    def compare(
        self, way: str, cases: Sequence[tuple[int, Any]], flags: Flags
    ) -> list[tuple[int, Any]]:
        """Compare inputs. Return the oracle's answers by case, except where it was not asked."""
        deadly = [d.given for d in self.found if d.way == way and d.deadly]
        if deadly:
            safe = [row for row in cases if not any(holds(row[1], part) for part in deadly)]
            self.more += len(cases) - len(safe)
            cases = safe
        expected, actual = self.answers(way, [given for _, given in cases], flags)
        rows = list(zip(cases, expected, actual, strict=True))
        for (at, given), want, got in rows:
            if want is None or got is None:
                self.refused += 1
            elif isinstance(want, Failure) and isinstance(got, Failure):
                self.refused += 1
                self.confirmed.append((way, given, want, got))
            elif self.is_foreign(way, want):
                self.left_out += 1
            elif not same(want, got):
                self.note(way, at, given, flags, deadly=is_deadly(want) or is_deadly(got))
        return [(at, want) for (at, _), want, _ in rows if want is not None]

    def answers(self, way: str, inputs: Sequence[Any], flags: Flags) -> tuple[list[Any], list[Any]]:
        """Return the answers of the oracle and the subject. An answer is None if the engine was not
        asked, because the refuser refuses the input, and earlier inputs have confirmed that the
        other engine refuses such inputs too."""
        question, names = QUESTIONS[way]
        on = dict(zip(names, flags, strict=True))
        if self.refuser is None:
            return self.oracle(question, inputs, **on), self.subject(question, inputs, **on)
        first = self.refuser(question, inputs, **on)
        other = self.subject if self.refuser is self.oracle else self.oracle
        failed = {i for i, answer in enumerate(first) if isinstance(answer, Failure)}
        taken = [i for i in range(len(inputs)) if i not in failed]
        second: list[Any] = [None] * len(inputs)
        for i, answer in zip(taken, other(question, [inputs[i] for i in taken], **on), strict=True):
            second[i] = answer
        for i in sorted(failed)[: max(0, CONFIRMED - len(self.confirmed))]:
            (second[i],) = other(question, [inputs[i]], **on)
        return (first, second) if self.refuser is self.oracle else (second, first)

    def note(self, way: str, at: int, given: Any, flags: Flags, *, deadly: bool) -> None:
        """Shrink a differing input and keep it, unless it contains a known differing input."""
        known = [d for d in self.found if d.way == way]
        enough = len(self.found) >= MOST_FOUND or self.shrinks >= MOST_SHRUNK
        if enough or any(holds(given, d.given) for d in known):
            self.more += 1
            return
        self.shrinks += 1
        judge = self.first_wrong if deadly else self.wrong
        small = shrink_input(given, lambda inputs: judge(way, inputs, flags))
        (want,), (got,) = self.answers(way, [small], flags)
        difference = TextDifference(
            way=way, flags=flags, given=small, expected=want, actual=got, case=at
        )
        if any(d.shape == difference.shape for d in known):
            self.more += 1
        else:
            self.found.append(difference)

    def wrong(self, way: str, inputs: Sequence[Any], flags: Flags) -> list[bool]:
        legal = [i for i, given in enumerate(inputs) if self.legal(given)]
        found = [False] * len(inputs)
        answers = self.answers(way, [inputs[i] for i in legal], flags)
        for i, want, got in zip(legal, *answers, strict=True):
            both_fail = isinstance(want, Failure) and isinstance(got, Failure)
            skipped = both_fail or self.is_foreign(way, want)
            found[i] = None not in (want, got) and not skipped and not same(want, got)
        return found

    def is_foreign(self, way: str, want: Any) -> bool:
        """Return True if the oracle decodes ids to bytes that are not UTF-8, and an engine declares
        that it handles only UTF-8. These answers are not compared."""
        return self.utf8_only and way == "decode" and type(want) is bytes and not is_utf8(want)

    def first_wrong(self, way: str, inputs: Sequence[Any], flags: Flags) -> list[bool]:
        """Return a flag for each input: True only for the shortest wrong input, because each wrong
        input may end a process."""
        found = [False] * len(inputs)
        for i in sorted(range(len(inputs)), key=lambda i: order(inputs[i])):
            if self.wrong(way, [inputs[i]], flags)[0]:
                found[i] = True
                break
        return found


def is_deadly(answer: Any) -> bool:
    return isinstance(answer, Failure) and answer.deadly


def same(want: Any, got: Any) -> bool:
    if isinstance(want, Failure | None) or isinstance(got, Failure | None):
        return False
    return bool(list(want) == list(got))


def holds(given: Any, part: Any) -> bool:
    """Return True if the input contains a smaller differing input, so that it need not be
    shrunk."""
    n = len(part)
    return n > 0 and any(given[at : at + n] == part for at in range(len(given) - n + 1))
