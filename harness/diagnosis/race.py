"""Asks wrong engines one question after the other, until an answer differs from the subject's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from time import perf_counter
from typing import Any

import numpy as np

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.diagnosis.asking import AskedQuestion
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.diagnosis.engines import Engines, KnownMistake
from lockstep.harness.diagnosis.pace import Pace
from lockstep.harness.diagnosis.questions import (
    Continued,
    Greedy,
    InTurn,
    Likeliest,
    RunQuestion,
)
from lockstep.harness.diagnosis.sampled import SampledLists
from lockstep.harness.processes.ahead import in_shares

# 36 mistakes on many models, each left out of the catalogue: other mistakes left 0.46 or more
CLOSE = 0.25
# A mistake that agrees within the noise must also explain three quarters of the squares of the
# difference from the right engine. If this difference is hardly larger than the noise, mistakes
# without an effect would agree too.
LEFT = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldAnswers:
    """The subject's answers, each compared with the right engine's.

    Texts that differ early come first, because texts without a difference show no mistake, and each
    token costs a run. in_turn: the questions in the order in which the subject was asked. shortest:
    a part of another question, which rules out most mistakes.
    """

    every: tuple[AskedQuestion, ...]
    right: tuple[Compared, ...]
    noise: float
    in_turn: tuple[AskedQuestion, ...] = ()
    shortest: AskedQuestion | None = None

    @property
    def off(self) -> list[AskedQuestion]:
        return [one for one, c in zip(self.every, self.right, strict=True) if not c.same.all()]


def hold_answers(
    engines: Engines,
    every: Sequence[AskedQuestion],
    noise: float,
    shortest: AskedQuestion | None = None,
) -> HeldAnswers:
    every = [*every, shortest] if shortest else every
    pairs = [(one, compare_answer(engines, Reference, one, noise)) for one in every]
    found = [(one, c) for one, c in pairs if c is not None]
    in_turn = tuple(one for one, _ in found)
    found.sort(key=lambda pair: (pair[0] is not shortest, *cost(*pair)))
    return HeldAnswers(
        every=tuple(one for one, _ in found),
        right=tuple(c for _, c in found),
        noise=noise,
        in_turn=in_turn,
        shortest=shortest,
    )


def cost(one: AskedQuestion, right: Compared) -> tuple[bool, bool, int, int]:
    text, question = is_text(one), one.question
    n = len(question.ids) if isinstance(question, Greedy) else 0
    return text, text and bool(right.same.all()), int(right.same.sum()) if text else 0, n


def beginning(one: AskedQuestion, right: Compared) -> AskedQuestion | None:
    """Return the question, cut off after an early difference of its text, because most wrong
    engines already differ there. Return None if the question has no such beginning."""
    question, n = one.question, int(right.same.sum()) + 1
    if not isinstance(question, Greedy | Continued) or right.same.all() or 2 * n > question.n:
        return None
    return AskedQuestion(question=question.shorten(n), said=question.beginning(one.said, n))


def is_text(one: AskedQuestion) -> bool:
    return isinstance(one.question, Greedy | Continued | InTurn)


def compare_answer(
    engines: Engines, cls: type[Any], one: AskedQuestion, noise: float
) -> Compared | None:
    answer = engines.answer(cls, one.question)
    if answer is None:
        return None
    found = one.question.compare(one.said, answer, engines.session(cls), noise)
    if cls is Reference or not isinstance(one.question, RunQuestion):
        return found
    right = engines.answer(Reference, one.question)
    moved = one.question.compare(right, answer, engines.session(cls), noise).apart
    return replace(found, moved=moved)


@dataclass(frozen=True, kw_only=True, eq=False)
class TriedMistake:
    """A known mistake that was tried.

    left: the share of the distance between the subject's and the right engine's logits that the
    mistake does not explain; infinity if the engine answers nothing. alike: the cosine between the
    effects of this mistake and of the subject on the logits. explains: the number of rows that this
    mistake has in common with the subject, where the right engine differs. breaks: the number of
    rows where only this mistake differs. as_right: names of questions that this mistake does not
    affect, because its logits equal the right engine's.
    """

    cls: KnownMistake
    survived: bool
    left: float
    alike: float = 0.0
    explains: int = 0
    breaks: int = 0
    as_right: frozenset[str] = frozenset()


# number of a mistake; the other fields are those of TriedMistake
Row = tuple[int, bool, float, float, int, int, list[str]]


def race(
    engines: Engines,
    classes: Sequence[KnownMistake],
    of: HeldAnswers,
    progress: Callable[[str], None],
) -> list[TriedMistake]:
    """Try each mistake on the questions, and return the results in the order of `classes`.

    Up to `engines.at_once` processes share the mistakes. They can, because wrong engines share no
    state.
    """

    def rows(numbers: Sequence[int]) -> list[Row]:
        best: TriedMistake | None = None
        found: list[Row] = []
        pace = Pace(left=len(numbers))
        for number in numbers:
            if 0 in numbers:  # only one process prints progress
                turn = f"known mistake {number + 1} of {len(classes)}{pace}"
                progress(f"{turn}{so_far(best)}")
            started = perf_counter()
            row = try_mistake(engines, classes[number], of)
            pace.add(1, perf_counter() - started)
            best = row if best is None or row.left < best.left else best
            effect = row.alike, row.explains, row.breaks
            found.append((number, row.survived, row.left, *effect, sorted(row.as_right)))
        return found

    shares = in_shares(rows, range(len(classes)), engines.at_once)
    return [
        TriedMistake(
            cls=classes[number],
            survived=survived,
            left=left,
            alike=alike,
            explains=explains,
            breaks=breaks,
            as_right=frozenset(as_right),
        )
        for number, survived, left, alike, explains, breaks, as_right in sorted(
            row for _, found in shares for row in found
        )
    ]


def so_far(best: TriedMistake | None) -> str:
    """Describe the best mistake so far. On a large model the search takes minutes, and a user may
    stop it early."""
    if best is None or best.left > CLOSE:
        return ""
    if best.survived:
        return f"; one reproduces these answers: {best.cls.mistake}"
    return f"; the closest leaves {best.left:.0%} of the difference: {best.cls.mistake}"


def try_mistake(engines: Engines, cls: KnownMistake, of: HeldAnswers) -> TriedMistake:
    with engines.open(cls):
        remembers = getattr(cls, "remembers", False)
        return (tried_in_turn if remembers else tried_in_any_order)(engines, cls, of)


def tried_in_any_order(engines: Engines, cls: KnownMistake, of: HeldAnswers) -> TriedMistake:
    found: list[Compared] = []
    as_right: set[str] = set()
    for one, right in zip(of.every, of.right, strict=True):
        begun = beginning(one, right)
        first = compare_answer(engines, cls, begun, of.noise) if begun else None
        if first is not None and not first.same.all():
            found.append(first)
            break
        own = compare_answer(engines, cls, one, of.noise)
        if own is None:
            return TriedMistake(cls=cls, survived=False, left=inf)
        found.append(own)
        if is_as_right(one, own, right):
            as_right.add(one.question.words)
        # more rows determine the distance better
        closer = one is of.shortest and left_by(found, of) <= LEFT
        closer |= isinstance(one.question, SampledLists) and count_rows(found, of)[0] > 0
        if not own.same.all() and not closer:
            break
    survived = len(found) == len(of.every) and all(own.same.all() for own in found)
    explains, breaks = count_rows(found, of)
    return TriedMistake(
        cls=cls,
        survived=survived,
        left=left_by(found, of),
        alike=alike_by(found, of),
        explains=explains,
        breaks=breaks,
        as_right=frozenset(as_right),
    )


def count_rows(own: Sequence[Compared], of: HeldAnswers) -> tuple[int, int]:
    """Return the number of compared rows that a mistake explains, and the number that it breaks."""
    pairs = [
        (a.same, b.same) for a, b in zip(own, of.right, strict=False) if a.same.size == b.same.size
    ]
    explains = sum(int((mine & ~right).sum()) for mine, right in pairs)
    return explains, sum(int((~mine & right).sum()) for mine, right in pairs)


def is_as_right(one: AskedQuestion, own: Compared, right: Compared) -> bool:
    """Return True if the rows have exactly the right engine's error. If two rows differ in one bit,
    their float64 distances from a third row are almost never equal."""
    far = (right.apart > 0) & np.isfinite(right.apart)
    run = isinstance(one.question, RunQuestion) and bool(far.any())
    return run and np.array_equal(own.apart, right.apart)


def reaching(
    classes: Sequence[KnownMistake], of: HeldAnswers, before: Sequence[TriedMistake]
) -> list[KnownMistake]:
    """Return the mistakes that had an effect on these questions in an earlier race, or were not
    tried in it. The other mistakes have no effect in this model, and each would cost a run."""
    off = {one.question.words for one in of.off}
    idle = {row.cls for row in before if row.as_right & off}
    return [cls for cls in classes if cls not in idle]


def alike_by(own: Sequence[Compared], of: HeldAnswers) -> float:
    """Return the cosine of the angle between two errors, computed from their lengths and the
    distance between them."""
    subjects, mistakes, between = 0.0, 0.0, 0.0
    for a, b in zip(own, of.right, strict=False):
        if a.moved is not None and a.same.size == b.same.size:
            off = ~b.same & np.isfinite(a.apart) & np.isfinite(b.apart) & np.isfinite(a.moved)
            subjects += float(b.apart[off].sum())
            mistakes += float(a.moved[off].sum())
            between += float(a.apart[off].sum())
    both = 2 * sqrt(subjects * mistakes)
    return (subjects + mistakes - between) / both if both else 0.0


def tried_in_turn(engines: Engines, cls: KnownMistake, of: HeldAnswers) -> TriedMistake:
    """Try a mistake whose answers depend on earlier questions. It gets all questions in the
    subject's order."""
    found: dict[int, Compared] = {}
    with engines.fresh(cls) as session:
        for one in of.in_turn:
            answer = one.question.of(session)
            if answer is None:
                return TriedMistake(cls=cls, survived=False, left=inf)
            own = one.question.compare(one.said, answer, session, of.noise)
            if not own.same.all():
                return TriedMistake(cls=cls, survived=False, left=inf)
            found[id(one)] = own
    return TriedMistake(
        cls=cls, survived=True, left=left_by([found[id(one)] for one in of.every], of)
    )


def left_by(own: Sequence[Compared], of: HeldAnswers) -> float:
    """Return the share of the distance that remains, over rows or lists where the right engine
    differs from the subject. Rows without a finite distance do not count. If there is no distance
    at all, return 0 if the answers explain everything, else infinity."""
    of_it, of_right = 0.0, 0.0
    for one, a, b in zip(of.every, own, of.right, strict=False):
        has_numbers = isinstance(one.question, RunQuestion | Likeliest)
        if has_numbers and len(a.same) == len(b.same):
            off = ~b.same & np.isfinite(b.apart)
            of_it += float(a.apart[off].sum())
            of_right += float(b.apart[off].sum())
    if of_right:
        return sqrt(of_it / of_right)
    return 0.0 if own and all(a.same.all() for a in own) and makes_some(own, of) else inf


def makes_some(own: Sequence[Compared], of: HeldAnswers) -> bool:
    """Return True if the wrong engine produces a token of the subject that the right engine does
    not produce. Return True also if anything other than texts differs. Without this rule, engines
    with larger logits would fit any text, because their ties are wider."""
    off = [row for row in zip(of.every, own, of.right, strict=False) if not row[2].same.all()]
    if not all(is_text(one) for one, _, _ in off):
        return True
    return any(mine.chosen > right.chosen for _, mine, right in off)
