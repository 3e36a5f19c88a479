"""Tries known mistakes on the questions that a subject and the right engine answer differently.

A mistake is named if it reproduces all of the subject's answers, and the right engine does not.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from math import inf, isfinite
from typing import Literal

import numpy as np

from lockstep.engine.batch import steps_of
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.catalogue.trial import Wrong
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.context.suite import Context
from lockstep.harness.diagnosis.asking import (
    AskedQuestion,
    Missing,
    ask_questions,
    questions_for,
    readable,
)
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.diagnosis.differences import Difference, differences_in
from lockstep.harness.diagnosis.engines import Engines, KnownMistake, candidates
from lockstep.harness.diagnosis.first_difference import FirstDifference
from lockstep.harness.diagnosis.pace import Estimate
from lockstep.harness.diagnosis.questions import (
    Greedy,
    InTurn,
    Likeliest,
    RunQuestion,
    value_of,
)
from lockstep.harness.diagnosis.race import (
    CLOSE,
    LEFT,
    HeldAnswers,
    TriedMistake,
    hold_answers,
    is_text,
    race,
    reaching,
)
from lockstep.harness.diagnosis.sampled import SampledLists
from lockstep.harness.diagnosis.shortest import shortest
from lockstep.harness.graph.floor import AT_ONCE
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import Answered, EngineInfo, Request

ASPECTS = ("metadata", "tokens", "runs", "samplers")
# a mistake is named from so many tokens that differ: fewer may be close calls that any error tips
PLACES = 3
AGAIN = 3
KEPT_DIFFERENCES = 4  # differences kept for each unit
NOTHING = "anything: the engine offers no logits, lists, tokens, text, ids, weights or metadata"
TINY = 1e-6  # share of a difference that rounding leaves between two versions of a mistake

# few: too few answers differ to name a mistake; not-compared: there is no limit
Status = Literal["right", "named", "few", "none", "not-compared"]


@dataclass(frozen=True, kw_only=True)
class Match:
    """A known mistake. `left` is the share of the subject's difference that it does not explain."""

    engine: str
    mistake: str
    effect: str
    source: str
    left: float


@dataclass(frozen=True, kw_only=True)
class Family:
    """The group of known mistakes whose effect is nearest to the subject's difference.

    alike: the cosine between the mistake's and the subject's effects on logits. explains: the
    number of rows that the nearest mistake has in common with the subject, where the right engine
    differs. breaks: the number of rows where only the nearest mistake differs.
    """

    name: str
    nearest: Match
    alike: float
    explains: int
    breaks: int


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The number of compared answers of one kind, and the number of them where the right engine
    agrees with the subject. `not_compared` counts answers after ties."""

    unit: str
    compared: int
    right: int
    not_compared: int = 0

    @property
    def nothing(self) -> bool:
        """Return True if nothing was compared: each text diverges in a tie at its first token."""
        return not self.compared and bool(self.not_compared)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The findings on one aspect of an engine: the file, its tokens, or its runs.

    named: mistakes that reproduce the subject's answers, and that these answers cannot distinguish.
    also: mistakes that reproduce them within the noise, but less exactly.
    """

    aspect: str
    status: Status
    rows: tuple[Rows, ...]
    named: tuple[Match, ...] = ()
    also: tuple[Match, ...] = ()
    closest: Match | None = None
    family: Family | None = None  # set if no mistake is named
    differences: tuple[Difference, ...] = ()  # the first rows that differ from the right engine's
    nearest: float = inf  # the part of the difference that the closest mistake leaves
    tried: int = 0
    places: int = 0  # number of questions that the right engine answers differently
    unsteady: str = ""


Tell = Callable[["Diagnosis | Difference | Estimate"], None]


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    of: tuple[Diagnosis, ...]
    missing: tuple[str, ...]  # questions that the subject did not answer
    engines: tuple[EngineInfo, ...] = ()

    @property
    def exit_code(self) -> int:
        found = {each.status for each in self.of}
        if found - {"right", "not-compared"}:
            return 1
        return 0 if found == {"right"} and not self.missing else 3


@dataclass(kw_only=True)
class DiagnosisBench:
    """Our own engines on one file, with ggml's roundings and without them."""

    rounding: Engines
    plain: Engines
    near: tuple[Wrong, ...]
    far: tuple[Wrong, ...]
    samplers: tuple[KnownMistake, ...] = field(
        default_factory=lambda: tuple(WRONG_SAMPLERS.values())
    )

    def mistakes_of(self, aspect: str) -> tuple[tuple[KnownMistake, ...], ...]:
        """Return groups of mistakes, the most likely group first."""
        return (self.samplers,) if aspect == SampledLists.aspect else (self.near, self.far)

    @classmethod
    def of(cls, context: Context, *, keep: bool = False) -> "DiagnosisBench":
        path, facts = context.subject_model, context.facts
        with open_model(path) as file:
            found = candidates(file, facts.architecture, vocabulary=facts.has_vocabulary)
            at_once = 1 if keep or is_small(file) else AT_ONCE
        both = [
            Engines(path=path, settings=context.settings, plain=plain, keep=keep, at_once=at_once)
            for plain in (False, True)
        ]
        return cls(rounding=both[0], plain=both[1], near=found.near, far=found.far)

    def close(self) -> None:
        self.rounding.close()
        self.plain.close()


def diagnose(context: Context, bench: DiagnosisBench, tell: Tell = lambda said: None) -> Diagnosed:
    """Ask and diagnose one aspect after the other.

    `tell` receives time estimates, the first difference, and each diagnosis when they are known.
    """
    facts = context.facts
    if not (facts.has_logits or facts.not_ours):
        context = context.for_embeddings()
    found: list[Diagnosis] = []
    unanswered: Missing = {}
    for aspect, questions in groupby(questions_for(context), key=lambda question: question.aspect):
        if aspect == SampledLists.aspect and is_needless(context, found):
            continue
        both = bench.rounding, bench.plain
        seen = FirstDifference(context=context, engines=both, aspect=aspect, tell=tell)
        if every := ask_questions(context, list(questions), unanswered, seen=seen, tell=tell):
            found.append(of_aspect(context, bench, aspect, every))
            tell(found[-1])
    missing = [f"{', '.join(words)}: {why}" for why, words in unanswered.items()]
    if not (found or missing or facts.not_ours):
        missing.append(NOTHING)
    if facts.not_ours:  # then no question about its runs was asked
        missing.append(f"its runs: {facts.not_ours}, so no known mistake can be tried")
    return Diagnosed(of=tuple(found), missing=tuple(missing))


def is_needless(context: Context, found: Sequence[Diagnosis]) -> bool:
    """Return True if samplers need no questions: another aspect is wrong, and the engine does not
    state that it samples."""
    wrong = any(each.status not in ("right", "not-compared") for each in found)
    return wrong and context.subject_info.levels is None


def of_aspect(
    context: Context, bench: DiagnosisBench, aspect: str, every: Sequence[AskedQuestion]
) -> Diagnosis:
    noise = context.noise.relative if aspect == "runs" else 0.0
    of = hold_answers(bench.rounding, every, noise)
    if of.off and aspect == "runs":
        noise = context.noise_on(context.batches)
        of = hold_answers(bench.rounding, every, noise, shortest(context, bench.rounding, of))
    rows, differences = rows_of(of), first_differences(bench.rounding, of)
    if not isfinite(of.noise):
        return Diagnosis(aspect=aspect, status="not-compared", rows=rows)
    if not of.off:
        return Diagnosis(aspect=aspect, status=status_of(rows), rows=rows)
    if aspect == "runs" and (plain := without_what_is_off(bench, every, of)):
        rows = rows_of(plain)
        return Diagnosis(aspect=aspect, status=status_of(rows), rows=rows)
    found: list[TriedMistake] = []
    for engines in (bench.rounding, bench.plain) if aspect == "runs" else (bench.rounding,):
        if engines is bench.plain:
            of = hold_answers(engines, every, of.noise, of.shortest)
        for classes in bench.mistakes_of(aspect):
            found += race(engines, reaching(classes, of, found), of, context.progress)
            if any(survives(row) for row in found):
                diagnosis = name_mistake(context, aspect, engines, of, found)
                return replace(diagnosis, differences=differences)
    return Diagnosis(
        aspect=aspect,
        status="none",
        rows=rows,
        closest=closest(found),
        family=nearest_family(found),
        differences=differences,
        nearest=min((row.left for row in found), default=inf),
        tried=number_of(found),
        places=len(of.off),
        unsteady=unsteadiness(context, of),
    )


def without_what_is_off(
    bench: DiagnosisBench, every: Sequence[AskedQuestion], of: HeldAnswers
) -> HeldAnswers | None:
    """Return the answers held against an engine without ggml's deliberate roundings, if it agrees
    with all of them; else None. If the first question that differs with roundings also differs
    without them, the other questions are skipped."""
    if hold_answers(bench.plain, of.off[:1], of.noise).off:
        return None
    plain = hold_answers(bench.plain, every, of.noise)
    return None if plain.off else plain


def status_of(rows: Sequence[Rows]) -> Status:
    """Return "right", or "not-compared" if nothing could be compared."""
    return "not-compared" if rows and all(row.nothing for row in rows) else "right"


def number_of(found: Sequence[TriedMistake]) -> int:
    return len({row.cls for row in found})


def survives(row: TriedMistake) -> bool:
    return row.survived and row.left <= LEFT


def closest(found: Sequence[TriedMistake]) -> Match | None:
    first = min(found, key=lambda row: row.left, default=None)
    return match(first) if first is not None and first.left <= CLOSE else None


def nearest_family(found: Sequence[TriedMistake]) -> Family | None:
    """Return the family with the nearest effect; None if no family is near."""
    like = [row for row in found if row.alike > 0 or row.explains > row.breaks]
    if not like:
        return None
    row = max(like, key=lambda row: (row.alike, row.explains - row.breaks))
    return Family(
        name=row.cls.group,
        nearest=match(row),
        alike=row.alike,
        explains=row.explains,
        breaks=row.breaks,
    )


def first_differences(engines: Engines, of: HeldAnswers) -> tuple[Difference, ...]:
    """Return a few differences for each kind of answer, but only the first row of logits."""
    found: dict[str, dict[str, Difference]] = {}
    for one, right in zip(of.every, of.right, strict=True):
        if one is of.shortest or right.same.all():
            continue
        kept = found.setdefault(one.question.unit, {})
        most = 1 if isinstance(one.question, RunQuestion) else KEPT_DIFFERENCES
        answer = engines.answer(Reference, one.question)
        for each in islice(differences_in(one, answer, right), KEPT_DIFFERENCES):
            if len(kept) < most:
                kept.setdefault(each.asked, each)
    return tuple(each for kept in found.values() for each in kept.values())


def name_mistake(
    context: Context, aspect: str, engines: Engines, of: HeldAnswers, found: Sequence[TriedMistake]
) -> Diagnosis:
    matching = sorted(filter(survives, found), key=lambda row: row.left)
    limit = 2 * matching[0].left + TINY
    return Diagnosis(
        aspect=aspect,
        status="named" if says_enough(engines, of) else "few",
        rows=rows_of(of),
        named=tuple(match(row) for row in matching if row.left <= limit),
        also=tuple(match(row) for row in matching if row.left > limit),
        nearest=min((row.left for row in found), default=inf),
        tried=number_of(found),
        places=len(of.off),
        unsteady=unsteadiness(context, of),
    )


def says_enough(engines: Engines, of: HeldAnswers) -> bool:
    """Return True if the differences are sufficient to name a mistake. Rows with NaN or infinity do
    not show their cause. If the subject's logits are right, its choice of tokens is wrong."""
    pairs = zip(of.every, of.right, strict=True)
    runs = [bool(c.same.all()) for one, c in pairs if isinstance(one.question, RunQuestion)]
    if runs and all(runs):
        return True
    off = [(one, c) for one, c in zip(of.every, of.right, strict=True) if not c.same.all()]
    numbers = any(
        isinstance(one.question, Likeliest) or np.isfinite(c.apart[~c.same]).any()
        for one, c in off
        if not is_text(one)
    )
    return numbers or sum(choices(engines, *each) for each in off if is_text(each[0])) >= PLACES


def choices(engines: Engines, one: AskedQuestion, right: Compared) -> int:
    """Return the number of a text's tokens that the right engine does not choose; 1 if unknown."""
    question = one.question
    if isinstance(question, InTurn):
        return int((~right.same).sum())
    if not isinstance(question, Greedy) or question.n == 1:
        return 1
    batches = steps_of(question.ids, one.said, question.decoder_start)
    run = value_of(engines.session(Reference).ask("evaluate", Request(batches=batches)))
    if run is None:
        return 1
    rows = np.concatenate(run.logits)[-len(one.said) :]
    return max(1, int((rows.argmax(axis=1) != one.said).sum()))


def match(row: TriedMistake) -> Match:
    cls = row.cls
    return Match(
        engine=cls.name,
        mistake=cls.mistake,
        effect=getattr(cls, "effect", ""),
        source=getattr(cls, "source", ""),
        left=row.left,
    )


def rows_of(of: HeldAnswers) -> tuple[Rows, ...]:
    every: Counter[str] = Counter()
    right: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    for one, c in zip(of.every, of.right, strict=True):
        every[one.question.unit] += len(c.same)
        right[one.question.unit] += int(c.same.sum())
        rest[one.question.unit] += c.not_compared
    return tuple(
        Rows(unit=unit, compared=every[unit], right=right[unit], not_compared=rest[unit])
        for unit in every
    )


def unsteadiness(context: Context, of: HeldAnswers) -> str:
    """Return a note if the subject answers the first differing question differently again. No known
    mistake does that."""
    question, said = of.off[0].question, of.off[0].said
    for _ in range(AGAIN):
        outcome = question.ask(context.subject)
        if not isinstance(outcome, Answered):
            return ""
        if not question.repeats(said, readable(context, question, outcome.value), of.noise):
            who = context.subject.name
            return f"asked again for {question.words}, {who} gives a different answer"
    return ""
