"""Does a program that shows no logits, but greedy tokens, lists of likely tokens or text alone,
answer the same with several threads?

As `several_threads` asks of logits: what threads do at once is another thing each time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.engine.batch import steps_of
from lockstep.harness.blackbox.long_prompt import THREADS
from lockstep.harness.blackbox.several_threads import WORDS, asked_with_threads, rounds
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.candidates import read_list
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import Request, Verdict
from lockstep.harness.suites.decode import Decode, judge_tokens
from lockstep.harness.suites.logprobs import MOST, by_ids, by_text, compare_lists, names
from lockstep.harness.suites.parts.oracles_logits import oracles_logits
from lockstep.harness.suites.parts.prompts import N_OTHERS
from lockstep.harness.suites.text import behind, is_wrong


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """question: of the subject, each time the same; judge: verdicts on its answer."""

    question: tuple[Any, ...]
    judge: Callable[[Any], Iterator[Verdict]]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """what: they are, in words; prepare: what is asked, None if the oracle has no answer."""

    suite: str
    what: str
    prepare: Callable[[Context], Repeated | None]


def check_threads(answers: Answers, plan: Plan, context: Context) -> Iterator[Verdict]:
    """Nothing of an engine that has one thread whatever it is told."""
    if context.settings.n_threads >= THREADS or not isinstance(context.subject, ProgramSession):
        return
    context.progress(f"{answers.what} {WORDS}")
    yield from asked_with_threads(plan, context, answers.suite, partial(until_wrong, answers))


def until_wrong(answers: Answers, context: Context) -> Iterator[Verdict]:
    """Each time the same question, until an answer is wrong."""
    repeated, suite = answers.prepare(context), answers.suite
    if repeated is None:
        return
    found: list[Verdict] = []
    known = None
    for _ in rounds():
        try:
            answer = context.ask(context.subject, *repeated.question)
            if answer == known:
                continue
            found, known = list(repeated.judge(answer)), answer
        except NoAnswer as error:
            key = (suite, error.status, "threads")
            yield context.verdict(suite, error.status, f"{WORDS}: {error}", error.detail, key)
            return
        if any(map(is_wrong, found)):
            break
    for verdict in found:
        more = "; with one thread that is right" if is_wrong(verdict) else ""
        detail = {**verdict.detail, "n_threads": THREADS} if more else verdict.detail
        yield replace(verdict, summary=f"{WORDS}: {verdict.summary}{more}", detail=detail)


def tokens(context: Context) -> Repeated | None:
    """None: of a wrong oracle it was said where one thread was asked."""
    question = ("greedy", Decode().prompt(context), context.n_steps)
    oracle = context.ask(context.oracle, *question)
    batches = steps_of(question[1], oracle, context.facts.decoder_start)
    logits = oracles_logits(context, batches)
    if logits is None:
        return None

    def judge(subject: Any) -> Iterator[Verdict]:
        yield judge_tokens(context, batches, logits[-len(oracle) :], None, oracle, subject)

    return Repeated(question=question, judge=judge)


def lists(context: Context) -> Repeated:
    asked = by_text(context) if context.subject_info.text_only else by_ids(context)
    run = context.ask(context.oracle, "evaluate", Request(batches=asked.batches))
    logits = np.concatenate(run.logits)

    def judge(found: Any) -> Iterator[Verdict]:
        listed = [read_list(row, names(context, found)) for row in found]
        yield compare_lists(context, asked, logits, listed)

    k = min(MOST, logits.shape[1])
    return Repeated(question=("logprobs", asked.prefixes, k), judge=judge)


def texts(context: Context) -> Repeated:
    n = min(N_OTHERS, context.n_steps)
    judge = partial(behind, context, context.prompt, n)
    return Repeated(question=("generate", context.prompt, n), judge=judge)


TOKENS = Answers(suite="decode", what="greedy tokens", prepare=tokens)
LISTS = Answers(suite="logprobs", what="the likeliest tokens", prepare=lists)
TEXTS = Answers(suite="text", what="a text", prepare=texts)
