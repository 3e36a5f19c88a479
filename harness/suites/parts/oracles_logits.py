"""Reference logits for tokens and texts: the oracle's logits if they are right, and honest runs.

One rule applies to all suites: a design explains an engine if a single run of this design
reproduces all its answers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch, join_batches
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import NOT_IN_ONE, Context, NoAnswer
from lockstep.harness.judging.noise import MORE_RUNS
from lockstep.harness.judging.tolerances import between_two_in_rows
from lockstep.harness.records import Request
from lockstep.harness.suites.parts.rounded_factors import explain_by_factors
from lockstep.harness.suites.parts.which_tokens import rounding
from lockstep.harness.suites.parts.whole_runs import is_oracle_wrong

NOT_DETERMINED = "logits are NaN or infinite, so greedy tokens are undefined"
ALL_TIE = "all tokens tie, so any choice agrees"
WRONG_ORACLE = "greedy tokens are compared with the oracle's logits, and these are wrong"
# no single honest run need choose this token, because the limit is a share of the largest logit
AS_NEAR = "within the noise of the choice of an honest run"
FIRST_ROUNDED = 1 << 16  # number of the first design that rounds the factors of products
# arguments: logits of a run (outputs, vocabulary), and the limit for each row
Fits = Callable[[F32, NDArray[np.float64]], bool]


def oracles_logits(context: Context, batches: Sequence[Batch]) -> F32 | None:
    """Return the oracle's logits of each output; None if they are wrong."""
    run = context.ask(context.oracle, "evaluate", Request(batches=tuple(batches)))
    logits: F32 = np.concatenate(run.logits)
    wrong = is_oracle_wrong(context, batches, logits, whole_truth(context, batches))
    return None if wrong else logits


def why_any_choice_agrees(context: Context, logits: F32) -> str:
    """Return why no greedy token after these rows can be wrong; "" if a token can be wrong.

    logits: (outputs, vocabulary).
    """
    if not np.isfinite(logits).all():
        return NOT_DETERMINED
    spread = logits.max(axis=1) - logits.min(axis=1)
    ties = spread <= between_two_in_rows(context.noise.relative, logits)
    return ALL_TIE if ties.all() else ""


def whole_truth(context: Context, batches: Sequence[Batch]) -> F32:
    """Return the logits of an honest run of our own engine."""
    floor = context.honest.floor(in_one(context, batches), seed=context.seed, runs=0)
    return np.concatenate(floor.logits)


def in_one(context: Context, batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Return the tokens of all batches in one batch with the same outputs, so that weights are
    decoded only once."""
    if context.facts.architecture in NOT_IN_ONE:
        return tuple(batches)
    encoded = [batch for batch in batches if batch.encoder]
    return (*encoded, join_batches([batch for batch in batches if not batch.encoder]))


def honest_runs(
    context: Context, batches: Sequence[Batch], among: Sequence[int] | None = None
) -> Iterator[tuple[int, F32]]:
    """Yield one run of each design with its number: 0 with llama.cpp's conversions of activations,
    1 without conversions, and higher numbers with other formats. among: the numbers of the designs
    to run; None for all."""
    numbers = range(2) if among is None else [n for n in among if n < 2]
    first = context.honest_runs(batches) if numbers else ()
    yield from ((n, first[n]) for n in numbers)
    formats = None if among is None else [n - 2 for n in among if 2 <= n < FIRST_ROUNDED]
    if formats != []:
        places = count() if formats is None else iter(formats)
        yield from ((2 + next(places), run) for run in context.converted_runs(batches, formats))


def designs_that_say(
    context: Context, batches: Sequence[Batch], fits: Fits, among: Sequence[int] | None = None
) -> Iterator[int]:
    """Yield the numbers of the designs whose runs agree with the subject. An engine must have the
    same design in all answers. fits: returns True if a run agrees."""
    noise = context.noise_on(batches)
    for number, run in honest_runs(context, batches, among):
        if fits(run, between_two_in_rows(noise, run)):
            yield number
    learn_design(context, batches)
    for number, design in enumerate(context.rounding or (), FIRST_ROUNDED):
        if among is None or number in among:
            floor = context.honest.rounded_run(batches, design, seed=context.seed, runs=MORE_RUNS)
            run = np.concatenate(floor.logits)
            if fits(run, between_two_in_rows(floor.relative, run)):
                yield number


def learn_design(context: Context, batches: Sequence[Batch]) -> None:
    """Ask for logits, if the engine shows them, because they may reveal a design that rounds
    factors. This design then explains the engine's choices too."""
    levels = context.subject_info.levels
    if context.rounding != [] or (levels is not None and "logits" not in levels):
        return
    with suppress(NoAnswer):
        run = context.ask(context.subject, "evaluate", Request(batches=tuple(batches)))
        logits, float32 = np.concatenate(run.logits), context.honest_runs(batches)
        explain_by_factors(context, batches, logits, float32, rounding(context, run))


def is_honest(context: Context, batches: Sequence[Batch], fits: Fits) -> bool:
    """Return True if some design agrees with the subject."""
    return any(True for _ in designs_that_say(context, batches, fits))


def nearly_chosen(
    tokens: Sequence[int], run: F32, allowed: NDArray[np.float64], first: int = 0
) -> bool:
    """Return True if each chosen token has nearly the largest logit. tokens: the chosen token of
    each row from `first` on; allowed: the limit of each row."""
    rows, limits = run[first:][: len(tokens)], allowed[first:][: len(tokens)]
    return bool((rows.max(axis=1) - rows[np.arange(len(rows)), list(tokens)] <= limits).all())


def other_choice(
    row: F32, actual: int, allowed: float, what: str = "token "
) -> tuple[str, dict[str, Any]]:
    """Return a description and the detail of a token chosen instead of the likeliest. what: the
    kind of the likeliest token, followed by a space."""
    wanted = int(row.argmax())
    margin = float(row[wanted]) - float(row[actual])
    text = f"the engine chooses token {actual}. The oracle's {what}{wanted} has a logit higher by "
    detail = {"at_fault": "subject", "expected": wanted, "actual": actual}
    detail |= {"margin": margin, "allowed": allowed}
    return f"{text}{margin:.2g} (allowed {allowed:.2g})", detail
