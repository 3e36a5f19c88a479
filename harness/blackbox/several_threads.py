"""Tests with several threads: does a program give the same answers as with one thread?

All other runs use the number of threads in the settings, usually one. With one thread, a shared
buffer or forgotten remainder rows do no harm. The long prompt of `long_context` already uses
several threads, so this module tests the other models. A program without logits is asked for its
other answers: greedy tokens, lists of likely tokens, or text.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import eq
from typing import Any

import numpy as np

from lockstep.engine.batch import steps_of
from lockstep.harness.bisect.bisection import Bisection, bisect_run
from lockstep.harness.blackbox.long_prompt import LEAST, THREADS, tokens_of
from lockstep.harness.check.check import BadInput, Plan, describe_engine
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.context.repeats import first_difference
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.candidates import read_list
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import Evaluation, Rejected, Request, Unanswerable, Verdict
from lockstep.harness.suites.decode import Decode, judge_tokens
from lockstep.harness.suites.logits import further_verdict, with_place
from lockstep.harness.suites.logprobs import MOST as MOST_LISTED
from lockstep.harness.suites.logprobs import by_ids, by_text, compare_lists, names
from lockstep.harness.suites.parts.oracles_logits import oracles_logits
from lockstep.harness.suites.parts.prompts import N_OTHERS
from lockstep.harness.suites.text import behind, is_wrong

# Threads meet at random, and a small model is finished soon: one answer in eight reveals a shared
# buffer. A fast engine is asked more often.
TIMES, SECONDS, MOST = 4, 2.0, 32
WORDS = f"started with n_threads {THREADS}"  # the engine may ignore the number


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """A question to repeat. question: asks an engine and returns its answer; judge: yields verdicts
    on an answer; are_same: compares two answers; is_last: returns True if a verdict ends the
    repetitions."""

    question: tuple[Any, ...]
    judge: Callable[[Any], Iterator[Verdict]]
    are_same: Callable[[Any, Any], bool] = eq
    is_last: Callable[[Verdict], bool] = is_wrong


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A kind of answer to compare. what: the name of the kind; prepare: returns the question, or
    None if the oracle has no right answer; told: True if verdicts already say how the engine was
    started, and a refusal counts against no engine."""

    suite: str
    what: str
    prepare: Callable[[Context], Repeated | None]
    told: bool = False


def check_several_threads(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Compare logits with several threads, unless the long prompt does so."""
    long_prompt = tokens_of(context) > LEAST and not is_small(context.file)
    if not (context.given or long_prompt):
        yield from check_threads(LOGITS, plan, context)


def check_threads(answers: Answers, plan: Plan, context: Context) -> Iterator[Verdict]:
    """Yield verdicts on a run with more threads; none if the engine cannot change the number."""
    if context.settings.n_threads >= THREADS or not isinstance(context.subject, ProgramSession):
        return
    context.progress(f"{answers.what} {WORDS}")
    yield from asked_with_threads(plan, context, answers.suite, partial(until_wrong, answers))


def asked_with_threads(
    plan: Plan, context: Context, suite: str, said: Callable[[Context], Iterator[Verdict]]
) -> Iterator[Verdict]:
    """Yield `said`'s verdicts on the program with several threads. If the program does not start, a
    verdict says so but blames no engine, because another copy is already running."""
    with with_threads(plan, context) as asked:
        if isinstance(asked, Context):
            yield from said(asked)
        elif asked:
            text = f"{WORDS}: the engine does not start: {asked}"
            yield context.verdict(suite, "not-applicable", text, {"n_threads": THREADS})


@contextmanager
def with_threads(plan: Plan, context: Context) -> Iterator[Context | str]:
    """Yield the context of the program, restarted with several threads, or the reason why it does
    not start. Yield "" if the program reports a different number of threads."""
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
    """Yield the numbers of the repetitions, as many as time allows."""
    began = time.perf_counter()
    for n in range(MOST):
        if n >= TIMES and time.perf_counter() - began > SECONDS:
            return
        yield n


def until_wrong(answers: Answers, context: Context) -> Iterator[Verdict]:
    """Ask the same question again and again, until an answer is wrong. Yield the verdicts on the
    last answer that differed from the answer before it."""
    repeated, suite = answers.prepare(context), answers.suite
    if repeated is None:
        return
    found: list[Verdict] = []
    known = None
    for _ in rounds():
        outcome = context.subject.ask(*repeated.question)
        if answers.told and isinstance(outcome, Unanswerable | Rejected):
            yield context.verdict(suite, "not-applicable", f"{WORDS}: {outcome.message}")
            return
        try:
            answer = context.answer(context.subject, repeated.question[0], outcome)
            if known is not None and repeated.are_same(known, answer):
                continue
            found, known = list(repeated.judge(answer)), answer
        except NoAnswer as error:
            key = (suite, error.status, "threads")
            yield context.verdict(suite, error.status, f"{WORDS}: {error}", error.detail, key)
            return
        if any(map(repeated.is_last, found)):
            break
    for verdict in found:
        wrong, text = repeated.is_last(verdict), verdict.summary
        if not answers.told:
            text = f"{WORDS}: {text}"
        detail = {**verdict.detail, "n_threads": THREADS} if wrong else verdict.detail
        more = "; with one thread the answer is right" if wrong else ""
        yield replace(verdict, summary=text + more, detail=detail)


# --- questions ----------------------------------------------------------------------------------


def logits(context: Context) -> Repeated:
    run = Run(words=WORDS, batches=context.batches, usual=True, known=True)
    question = ("evaluate", Request(batches=run.batches))
    expected: Evaluation = context.ask(context.oracle, *question)

    def judge(actual: Any) -> Iterator[Verdict]:
        yield with_place(run, further_verdict(context, run, expected, actual))

    return Repeated(
        question=question,
        judge=judge,
        are_same=lambda known, actual: first_difference(known, actual) is None,
        is_last=lambda verdict: verdict.status != "agreed",
    )


def tokens(context: Context) -> Repeated | None:
    """Return the question for greedy tokens; None if the oracle's logits are wrong."""
    question = ("greedy", Decode().prompt(context), context.n_steps)
    oracle = context.ask(context.oracle, *question)
    batches = steps_of(question[1], oracle, context.facts.decoder_start)
    rows = oracles_logits(context, batches)
    if rows is None:
        return None

    def judge(subject: Any) -> Iterator[Verdict]:
        yield judge_tokens(context, batches, rows[-len(oracle) :], None, oracle, subject)

    return Repeated(question=question, judge=judge)


def lists(context: Context) -> Repeated:
    asked = by_text(context) if context.subject_info.text_only else by_ids(context)
    run = context.ask(context.oracle, "evaluate", Request(batches=asked.batches))
    rows = np.concatenate(run.logits)

    def judge(found: Any) -> Iterator[Verdict]:
        listed = [read_list(row, names(context, found)) for row in found]
        yield compare_lists(context, asked, rows, listed)

    k = min(MOST_LISTED, rows.shape[1])
    return Repeated(question=("logprobs", asked.prefixes, k), judge=judge)


def texts(context: Context) -> Repeated:
    n = min(N_OTHERS, context.n_steps)
    judge = partial(behind, context, context.prompt, n)
    return Repeated(question=("generate", context.prompt, n), judge=judge)


LOGITS = Answers(suite="logits", what="logits", prepare=logits, told=True)
TOKENS = Answers(suite="decode", what="greedy tokens", prepare=tokens)
LISTS = Answers(suite="logprobs", what="the likeliest tokens", prepare=lists)
TEXTS = Answers(suite="text", what="a text", prepare=texts)


# --- places -------------------------------------------------------------------------------------


def bisect_threads(plan: Plan, context: Context) -> Bisection | None:
    """Bisect runs with several threads until a run shows a place. The caller knows that no op is
    wrong with one thread."""
    context.progress(f"the same {WORDS}")
    # findings stay valid if a later question fails
    with with_threads(plan, context) as asked, suppress(BadInput, NoAnswer):
        for _ in range(TIMES):
            if not isinstance(asked, Context):
                break
            found = bisect_run(asked)
            if found.culprits:
                return replace(found, asked=WORDS)
    return None
