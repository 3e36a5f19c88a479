"""Does a program give the same logits with several threads?

All else is asked of one, as the settings say, so that whoever lets threads share a buffer, or loses
the rows that are left over among them, is right everywhere. Of a model that the long prompt of
`long_context` is asked of, that is asked with several; any other is asked here.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from lockstep.harness.bisect.bisection import Bisection, bisect_run
from lockstep.harness.blackbox.long_prompt import LEAST, THREADS, tokens_of
from lockstep.harness.check.check import BadInput, Plan, describe_engine
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.context.repeats import first_difference
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import Evaluation, Rejected, Request, Unanswerable, Verdict
from lockstep.harness.suites.logits import further_verdict, with_place

SUITE = "logits"
# What threads do at once is another thing each time, and of a small model it is soon over: one
# answer in eight shows a shared buffer there. A quick engine is asked more often.
TIMES, SECONDS, MOST = 4, 2.0, 32
WORDS = f"started with n_threads {THREADS}"  # whether it follows that, nobody sees


def check_several_threads(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Nothing of an engine that has one thread whatever it is told."""
    long_prompt = tokens_of(context) > LEAST and not is_small(context.file)
    given = context.given or context.settings.n_threads >= THREADS
    if given or long_prompt or not isinstance(context.subject, ProgramSession):
        return
    context.progress(f"logits {WORDS}")
    yield from asked_with_threads(plan, context, SUITE, judge_repeats)


def asked_with_threads(
    plan: Plan, context: Context, suite: str, said: Callable[[Context], Iterator[Verdict]]
) -> Iterator[Verdict]:
    """What `said` says of the program with several; that it does not start so is said as well, and
    no fault: one of it runs already."""
    with with_threads(plan, context) as asked:
        if isinstance(asked, Context):
            yield from said(asked)
        elif asked:
            text = f"{WORDS}: it does not start: {asked}"
            yield context.verdict(suite, "not-applicable", text, {"n_threads": THREADS})


@contextmanager
def with_threads(plan: Plan, context: Context) -> Iterator[Context | str]:
    """The same program, started anew with several; or why it does not start, "" where it says that
    it has another number."""
    settings = replace(context.settings, n_threads=THREADS)
    with context.runner.open(plan.engine, plan.subject_model, settings) as session:
        asked: Context | str = ""
        try:
            info = describe_engine(session, under_test=True)
        except (BadInput, NoAnswer) as error:
            asked = str(error)
        else:
            if info.settings is None or info.settings.n_threads == THREADS:
                asked = context.with_subject(session, context.subject_model, info)
        yield asked


def rounds() -> Iterator[int]:
    """Of the same question, as many as there is time for."""
    began = time.perf_counter()
    for n in range(MOST):
        if n >= TIMES and time.perf_counter() - began > SECONDS:
            return
        yield n


def judge_repeats(context: Context) -> Iterator[Verdict]:
    """Each time the same batches, until one differs."""
    run = Run(words=WORDS, batches=context.batches, usual=True, known=True)
    request = Request(batches=run.batches)
    expected: Evaluation = context.ask(context.oracle, "evaluate", request)
    found, agrees = None, None
    for _ in rounds():
        outcome = context.subject.ask("evaluate", request)
        if isinstance(outcome, Unanswerable | Rejected):
            yield context.verdict(SUITE, "not-applicable", f"{WORDS}: {outcome.message}")
            return
        try:
            actual = context.answer(context.subject, f"evaluate {WORDS}", outcome)
        except NoAnswer as error:
            yield context.verdict(
                SUITE, error.status, str(error), error.detail, (SUITE, error.status, "threads")
            )
            return
        if agrees is not None and first_difference(agrees, actual) is None:
            continue
        found = with_place(run, further_verdict(context, run, expected, actual))
        if found.status != "agreed":
            text = f"{found.summary}; with one thread it agrees"
            yield replace(found, summary=text, detail={**found.detail, "n_threads": THREADS})
            return
        agrees = actual
    if found is not None:
        yield found


def bisect_threads(plan: Plan, context: Context) -> Bisection | None:
    """Where no op is wrong with one thread: of runs with several, until one shows where."""
    context.progress(f"the same {WORDS}")
    # what was found is true whatever becomes of this
    with with_threads(plan, context) as asked, suppress(BadInput, NoAnswer):
        for _ in range(TIMES):
            if not isinstance(asked, Context):
                break
            found = bisect_run(asked)
            if found.culprits:
                return replace(found, asked=WORDS)
    return None
