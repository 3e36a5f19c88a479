"""Comparison of two engines, and of each engine with itself, on one schedule."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.context.runner import Session
from lockstep.harness.fuzzers.batch.schedule import Row, ScheduleCase
from lockstep.harness.records import (
    Answered,
    Busy,
    Crashed,
    Malformed,
    Outcome,
    Rejected,
    TimedOut,
    Unanswerable,
)
from lockstep.harness.synth.small import N_VOCAB

Answers = list[dict[str, Any]]
# Two honest runs differ by the order of float32 sums: about 1e-7 of the largest term in each op,
# which is a squared error of 1e-14 to 1e-12 of the squared logits. 1e-9 corresponds to a relative
# error of 3e-5, or hundreds of rounding errors. If a token sees one cell too many or too few, or if
# a key is rotated by a wrong position, logits change by percents.
ALLOWED_NMSE = 1e-9
# in order of dependence: each part depends on those before it
EXACT = ("code", "pos", "ubatches", "slots", "order")


@dataclass(frozen=True, kw_only=True)
class ScheduleDifference:
    """The first difference. `symptom`: one of EXACT, or another name, such as logits, neighbours,
    splitting or crashed."""

    symptom: str
    step: int
    name: str  # name of the step
    text: str
    who: str = ""  # the engine that contradicts itself, or ""
    # both engines' answers to the step, without logits; None: they were not compared
    expected: dict[str, Any] | None = None
    actual: dict[str, Any] | None = None


@dataclass
class Judge:
    """A judge of schedules. `counts`: the number of comparisons of each kind."""

    oracle: Session
    subject: Session
    counts: Counter[str] = field(default_factory=Counter)
    relations: bool = True  # True: each engine's own answers are compared with each other too
    relations_of_subject: bool = True

    def __call__(self, case: ScheduleCase) -> ScheduleDifference | None:
        first, second = (self.ask(session, case) for session in (self.oracle, self.subject))
        for session, answer in ((self.oracle, first), (self.subject, second)):
            if isinstance(answer, ScheduleDifference):
                return replace(answer, who=session.name)
        assert not isinstance(first, ScheduleDifference)
        assert not isinstance(second, ScheduleDifference)
        self.counts["schedules"] += 1
        found = self.compare(case, first, second)
        if found is not None or not self.relations:
            return found
        pairs = [(self.oracle, first)]
        pairs += [(self.subject, second)] if self.relations_of_subject else []
        for session, answers in pairs:
            for relation in (self.neighbours, self.splitting):
                found = relation(session, case, answers)
                if found is not None:
                    return replace(found, who=session.name)
        return None

    def ask(self, session: Session, case: ScheduleCase) -> Answers | ScheduleDifference:
        outcome: Outcome = session.ask("schedule", case.plan())
        match outcome:
            case Answered(value=answers):
                return list(answers)
            case TimedOut(seconds=seconds):
                symptom, text = "timed-out", f"no answer in {seconds:.0f} s"
            case Rejected() | Unanswerable() | Crashed() | Busy() | Malformed():
                symptom, text = type(outcome).__name__.lower(), outcome.message
        words = [line for line in getattr(outcome, "log", ()) if "GGML_ASSERT" in line]
        told = [line.rpartition("GGML_ASSERT")[2] for line in words[:1]]
        return ScheduleDifference(symptom=symptom, step=-1, name="", text="; ".join([text, *told]))

    # --- engine against engine ------------------------------------------------------------------

    def compare(
        self, case: ScheduleCase, first: Answers, second: Answers
    ) -> ScheduleDifference | None:
        for at, (step, want, got) in enumerate(zip(case.steps, first, second, strict=True)):
            self.counts["steps"] += 1
            if found := self.step_differs(at, str(step[0]), want, got):
                said = [{k: v for k, v in a.items() if k != "logits"} for a in (want, got)]
                return replace(found, expected=said[0], actual=said[1])
        return None

    def step_differs(
        self, at: int, name: str, want: dict[str, Any], got: dict[str, Any]
    ) -> ScheduleDifference | None:
        for what in EXACT:
            if None in (want[what], got[what]):
                continue
            self.counts[what] += len(want[what]) if isinstance(want[what], list) else 1
            if not same(want[what], got[what]):
                text = in_words(what, want[what], got[what])
                return ScheduleDifference(symptom=what, step=at, name=name, text=text)
        if want["logits"] is None or got["logits"] is None:
            return None
        self.counts["logits"] += len(want["logits"])
        text = ""
        if want["logits"].shape != got["logits"].shape:
            text = f"{len(got['logits'])} rows of logits, expected {len(want['logits'])}"
        elif not (error := worst(want["logits"], got["logits"])) <= ALLOWED_NMSE:
            text = f"NMSE of the logits is {error:.1e} (allowed {ALLOWED_NMSE})"
        return (
            ScheduleDifference(symptom="logits", step=at, name="decode", text=text)
            if text
            else None
        )

    # --- an engine against itself ---------------------------------------------------------------

    def neighbours(
        self, session: Session, case: ScheduleCase, base: Answers
    ) -> ScheduleDifference | None:
        """Change unrelated sequences. Not one bit of this sequence's logits may change."""
        mine = component(case)
        changed = with_others_changed(case, mine)
        if changed == case:
            return None

        def same(at: int, row: Row, a: NDArray[Any], b: NDArray[Any]) -> bool:
            if not mine.issuperset(row[2]):
                return True
            self.counts["neighbours"] += 1
            return np.array_equal(a, b, equal_nan=True)

        text = "logits change with the tokens of unrelated sequences"
        return self.rows_differ(session, case, changed, base, same, "neighbours", text)

    def splitting(
        self, session: Session, case: ScheduleCase, base: Answers
    ) -> ScheduleDifference | None:
        """Run the schedule with another ubatch size. The logits must be nearly the same."""
        other = replace(case, n_ubatch=other_size(case))

        def same(at: int, row: Row, a: NDArray[Any], b: NDArray[Any]) -> bool:
            self.counts["splitting"] += 1
            return worst(a[None], b[None]) <= ALLOWED_NMSE

        text = f"logits differ with ubatches of {other.n_ubatch} tokens"
        return self.rows_differ(session, case, other, base, same, "splitting", text)

    def rows_differ(
        self,
        session: Session,
        case: ScheduleCase,
        other: ScheduleCase,
        base: Answers,
        same: Callable[[int, Row, NDArray[Any], NDArray[Any]], bool],
        symptom: str,
        text: str,
    ) -> ScheduleDifference | None:
        """Compare the logits of each output in two runs, up to the first step at which the runs
        differ in code or positions. same: compares two rows."""
        if all(answer["logits"] is None for answer in base):
            return None
        answers = self.ask(session, other)
        if isinstance(answers, ScheduleDifference):
            return answers
        for at, (step, a, b) in enumerate(zip(case.steps, base, answers, strict=True)):
            if a["code"] == b["code"] and a["logits"] is not None and b["logits"] is not None:
                outputs = [row for row in step[1] if row[3]]
                if not len(outputs) == len(a["logits"]) == len(b["logits"]):
                    text = (
                        f"{len(a['logits'])} and {len(b['logits'])} rows for {len(outputs)} outputs"
                    )
                    return ScheduleDifference(symptom=symptom, step=at, name="decode", text=text)
                for row, x, y in zip(outputs, a["logits"], b["logits"], strict=True):
                    if not same(at, row, x, y):
                        return ScheduleDifference(
                            symptom=symptom, step=at, name="decode", text=text
                        )
            # further steps may differ as a consequence
            if a["code"] != b["code"] or a["pos"] != b["pos"]:
                self.counts["parted"] += 1
                return None
        return None


def other_size(case: ScheduleCase) -> int:
    """Return another ubatch size, which is small if the case's size is large, and large if it is
    small. One token of each sequence must fit."""
    smaller = max(case.n_seq + 1, case.n_ubatch // 4)
    return smaller if case.n_ubatch > 4 else max(24, case.n_seq)


def worst(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest normalised squared error of a row. NaN at the same place in both arrays is
    not an error."""
    both = np.isnan(a) & np.isnan(b)
    a, b = np.where(both, 0, a).astype(np.float64), np.where(both, 0, b).astype(np.float64)
    size = np.maximum((a * a).sum(axis=-1), 1e-30)
    errors = ((a - b) ** 2).sum(axis=-1) / size
    return float(np.nan_to_num(errors, nan=np.inf).max(initial=0.0))


def component(case: ScheduleCase) -> frozenset[int]:
    """Return the sequence of the first output, and all sequences that ever share a token or a copy
    with it."""
    groups = {seq: {seq} for seq in range(-1, case.n_seq + 1)}

    def join(*seqs: int) -> None:
        whole = set().union(*(groups[s] for s in seqs))
        for seq in whole:
            groups[seq] = whole

    saves: list[int] = []
    outputs: list[int] = []
    for step in case.steps:
        if step[0] == "decode":
            for _, _, seqs, output in step[1]:
                if seqs:
                    join(*seqs)
                    outputs += [seqs[0]] if output else []
        elif step[0] == "cp":
            join(step[1], step[2])
        elif step[0] == "save":
            saves.append(step[1])
        elif step[0] == "load" and step[1] >= 0:
            join(step[1], saves[step[2]])
    return frozenset(groups[outputs[0]] if outputs else ())


def with_others_changed(case: ScheduleCase, mine: frozenset[int]) -> ScheduleCase:
    def other(row: Row) -> Row:
        token = row[0]
        if 0 < token < N_VOCAB and not mine.intersection(row[2]):
            token = token % (N_VOCAB - 1) + 1
        return (token, *row[1:])

    steps = [
        (step[0], tuple(map(other, step[1]))) if step[0] == "decode" else step
        for step in case.steps
    ]
    return case.with_steps(steps)


def same(want: Any, got: Any) -> bool:
    """Return True if both values agree. None stands for a value that an engine does not show, and
    agrees with anything."""
    if want is None or got is None or want == got:
        return True
    lists = isinstance(want, list) and isinstance(got, list)
    return lists and len(want) == len(got) and all(map(same, want, got))


def in_words(what: str, want: Any, got: Any) -> str:
    if not isinstance(want, list):
        return f"{what} {got}, expected {want}"
    at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if not same(a, b)), -1)
    if at < 0:
        return f"{len(got)} {what}, expected {len(want)}"
    names = {"pos": "positions of sequence", "ubatches": "ubatch", "slots": "cells looked at"}
    names["order"] = "the token of output"
    return f"{names[what]} {at}: {short(got[at])}, expected {short(want[at])}"


def short(value: Any) -> str:
    if isinstance(value, list) and len(value) == 3 and isinstance(value[2], Sequence):
        kind = {None: "an ubatch", True: "equal", False: "simple"}[value[0]]
        value = f"{kind}, {value[1] or '?'} sets: {' '.join(map(short_row, value[2]))}"
    text = str(value)
    return text if len(text) < 160 else text[:157] + "..."


def short_row(row: Sequence[Any]) -> str:
    """Format a row as token@position/sequences, with ? for values that cannot be seen and ! for an
    output."""
    token, pos, seqs, output = row
    where = "?" if seqs is None else ",".join(map(str, seqs))
    return f"{token}@{'?' if pos is None else pos}/{where}{'!' if output else ''}"
