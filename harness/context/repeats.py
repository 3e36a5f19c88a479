"""Determinism: does a repeated question get the same bits? If an engine's runs differ, no place in
it can be blamed, and a single replacement proves nothing. The verdict states how often runs differ,
and the first difference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context, no_answer
from lockstep.harness.judging.compare import bits, largest, same_bits, worst_distance
from lockstep.harness.records import Answered, Evaluation, Outcome, Request, Site, Verdict

MORE = 7  # further runs if something differs: a random bit is seen in 127 of 128 cases
AGAIN = 3  # repetitions of whole texts
IN_A_ROW = (
    3  # runs of an engine started anew: that a race gives all of them twice alike is no chance
)
# Factor. State that remains from an earlier run fades, and each later run begins with only a
# slightly different state. With a race, runs differ from each other as much as from the first.
FAR = 32

Place = tuple[int, str, Site | None]  # distance into the run, and the same in words


@dataclass(frozen=True, kw_only=True)
class Unsteady:
    differ: int  # number of runs with other bits than the first
    runs: int
    place: str  # the earliest place in the order of a run
    site: Site | None  # the site of that place, if the engine shows tensors
    apart: float  # largest difference of logits, as a share of the largest logit
    first_alone: bool = False  # all other runs are nearly equal, which no race produces
    # a restarted engine gives other bits from run to run, but the same bits after each restart
    by_history: bool = False

    @property
    def left_over(self) -> bool:
        return self.first_alone or self.by_history

    def __str__(self) -> str:
        text = (
            f"{self.differ} of {self.runs} repeated runs give different bits, from "
            f"{self.place} on; logits differ by up to {self.apart:.1e} of the largest logit"
        )
        if self.first_alone:
            text += (
                "; only the first run differs from the others. This is not a race: "
                "a run leaves data behind that the engine does not clear"
            )
        elif self.by_history:
            text += (
                f"; after each restart the first {IN_A_ROW} runs give the same bits "
                "again. This is not a race: a run leaves data behind that the engine does "
                "not clear"
            )
        return text


def unsteady(
    session: Session,
    request: Request,
    first: Evaluation,
    *,
    doubt: bool = False,
    again: Outcome | None = None,
) -> Unsteady | None:
    """Ask the engine again, and return how its answers differ; None if the second answer has the
    same bits. With `doubt`, as after a difference, ask seven times in any case. `again` is the
    first of these answers, if it is known. Raises NoAnswer."""
    places: list[Place] = []
    apart, runs = 0.0, 0
    second: Evaluation | None = None
    spread = 0.0  # largest difference among all runs but the first
    while runs < (MORE if doubt or places else 1):
        outcome, again = again or session.ask("evaluate", request), None
        if not isinstance(outcome, Answered):
            raise no_answer(session.name, "evaluate the same batches again", outcome)
        runs += 1
        second = second or outcome.value
        spread = max(spread, farthest(second, outcome.value))
        if place := first_difference(first, outcome.value):
            places.append(place)
            apart = max(apart, farthest(first, outcome.value))
    if not places:
        return None
    size = max(map(largest, first.logits), default=0.0) or 1.0
    _, words, site = min(places, key=lambda place: place[0])
    always = runs > 1 and len(places) == runs
    alone = always and spread <= apart / FAR
    return Unsteady(
        differ=len(places),
        runs=runs,
        place=words,
        site=site,
        apart=apart / size,
        first_alone=alone,
        by_history=always and not alone and goes_by_history(session, request),
    )


def goes_by_history(session: Session, request: Request) -> bool:
    """Return True if the same differences occur after each restart, so that the answers depend on
    earlier questions, as with state that fades slowly. The test does not apply to a server, which
    cannot be restarted."""
    one, other = (fresh_runs(session, request) for _ in range(2))
    if one is None or other is None or first_difference(one[0], one[-1]) is None:
        return False
    return not any(first_difference(a, b) for a, b in zip(one, other, strict=True))


def fresh_runs(session: Session, request: Request) -> list[Evaluation] | None:
    """Return the first runs of a new process; None if an answer is missing."""
    session.close()
    outcomes = [session.ask("evaluate", request) for _ in range(IN_A_ROW)]
    runs = [outcome.value for outcome in outcomes if isinstance(outcome, Answered)]
    return runs if len(runs) == IN_A_ROW else None


def farthest(a: Evaluation, b: Evaluation) -> float:
    """Return the largest difference of logits; 0 for runs without logits."""
    pairs = zip(a.logits, b.logits, strict=True)
    return max((worst_distance(x, y) for x, y in pairs), default=0.0)


def first_difference(first: Evaluation, again: Evaluation) -> Place | None:
    """Return the first difference: first in the tensors that both runs show, in order, then in the
    logits. Return None if there is none."""
    shown = again.trace.values() if again.trace else {}
    before = first.trace.values() if first.trace else {}
    for at, (site, value) in enumerate(before.items()):
        if site in shown and not same_bits(value, shown[site]):
            return at, f"{site} of batch {site.step}", site
    for batch, (a, b) in enumerate(zip(first.logits, again.logits, strict=True)):
        # an engine with a vocabulary of unknown size may answer with any width
        if a.shape != b.shape:
            return len(before) + batch, f"the shape of batch {batch}'s outputs", None
        if not same_bits(a, b):
            row, token = np.argwhere(bits(a) != bits(b))[0]
            return len(before) + batch, f"output {row} of batch {batch}, token {token}", None
    return None


def not_deterministic(context: Context, suite: str, found: Unsteady) -> Verdict:
    """Return the verdict that the engine is not deterministic. Its key lets a list of known
    differences excuse an engine that adds in random order on purpose."""
    text = f"{context.subject.name} is not deterministic: {found}"
    detail: dict[str, Any] = {"at_fault": "subject", "kind": "not-deterministic"}
    detail |= {"place": found.place, "differ": found.differ, "runs": found.runs}
    detail |= {"first_alone": found.first_alone, "by_history": found.by_history}
    # the size of the difference, by which known divergences are recognised
    detail |= {"worst_relative_to_largest_logit": found.apart}
    detail |= {"allowed_relative": 2 * context.noise.relative}
    return context.verdict(suite, "diverged", text, detail, (suite, "not-deterministic"))


def same_words(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


def asked_again(
    context: Context,
    suite: str,
    first: Any,
    question: str,
    *args: Any,
    same: Callable[[Any, Any], bool] = same_words,
) -> Iterator[Verdict]:
    """Repeat a question that got a wrong answer and is not a run. Yield a verdict if the answers
    differ."""
    answers = [context.ask(context.subject, question, *args) for _ in range(AGAIN)]
    differ = sum(not same(answer, first) for answer in answers)
    if differ:
        who = context.subject.name
        text = (
            f"{who} is not deterministic: {differ} of {AGAIN} repeated answers differ "
            "from the first"
        )
        text += "; does the engine sample at random, or keep state of an earlier question?"
        detail = {"differ": differ, "runs": AGAIN, "at_fault": "subject"}
        yield context.verdict(suite, "diverged", text, detail, (suite, "not-deterministic"))
