"""Prompts longer than the chunks in which engines compute.

Engines cut prompts into chunks of 256 or 512 tokens, keep tables of positions, and grow their
caches. No test of a whole model uses a prompt of that length, because it would take minutes. So
both engines run a model's first two layers on a prompt of more than a thousand tokens, in F32 and
with the first tokens of a large vocabulary. They use three threads, because rows that remain after
an even split show only with several threads.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.random import Philox

from lockstep.engine.batch import Batch
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.blackbox import long_context
from lockstep.harness.blackbox.asking import NotSteady, SliceAsker, left_unanswered
from lockstep.harness.blackbox.long_context import SUITE, ways_to_make
from lockstep.harness.blackbox.offers import why_not_asked
from lockstep.harness.blackbox.probes import bisect_on_made, on_made_models
from lockstep.harness.blackbox.slices import first_layers, n_layers, number
from lockstep.harness.check.check import BadInput, Opened, Plan
from lockstep.harness.context.repeats import unsteady
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import (
    Answered,
    Evaluation,
    Outcome,
    Request,
    Settings,
    TimedOut,
    Verdict,
)
from lockstep.harness.suites.logits import further_verdict
from lockstep.harness.suites.parts.which_tokens import part

PROMPT = 1101  # tokens: more than four batches of 256, two of 512 and one of 1024, with a remainder
STEPS = 3  # number of single tokens after the prompt
# the smallest multiple of 256 that holds all tokens, as in llama.cpp. llama.cpp chooses the rope
# factors of long contexts by the number of cells, and other engines by the length of the text.
CELLS = 1280
LAYERS = 2
LARGEST = 1 << 25  # weights of the made model: 74 GFLOP, which take seconds in an efficient engine
PATIENCE = 30.0  # seconds; a check of a real model takes about as long without this question
THREADS = 3
LEAST = 520  # tokens: if the model allows no more, suite `logits` fills the whole cache already
Found = TypeVar("Found")


def long_texts(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Yield the verdicts of the suite `long-context`."""
    yield from long_context.check_long_context(plan, context)
    yield from check_long_prompt(plan, context)


def check_long_prompt(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Test positions that no other run reaches. Small models are tested too, because a new engine
    usually runs them first."""
    if tokens_of(context) > LEAST:
        yield from on_made_models(plan, context, SUITE, partial(ask_long_prompt, context))


def tokens_of(context: Context) -> int:
    """Return the number of tokens in the prompt, or 0 if no prompt is tested. An encoder needs no
    such test, because it takes any prompt in one piece. An engine without logits gets a question
    for more text instead."""
    levels, facts = context.subject_info.levels, context.facts
    if facts.decoder_start is not None or not (levels is None or "logits" in levels):
        return 0
    if why_not_asked(context.subject.name, levels):
        return 0
    limits = (facts.n_positions, number(context.file, "context_length", 0))
    return int(min([PROMPT + STEPS, *(limit for limit in limits if limit)])) - STEPS


def ask_long_prompt(context: Context, asker: SliceAsker) -> Iterator[Verdict]:
    n, of = tokens_of(context), n_layers(asker.file)
    layers = f"its first {min(LAYERS, of)} of {of} layers"
    if weights_of(asker) > LARGEST:
        text = f"{asked_for(n, THREADS)}, {layers}: not asked, because it would take too long"
        yield context.verdict(SUITE, "not-applicable", text)
        return
    context.progress("a long prompt")
    settings = replace(asker.plan.settings, n_ctx=CELLS, n_threads=THREADS)
    found = (
        opened_with(asker, settings, lambda opened: judge_long_prompt(context, opened, n, layers))
        or ()
    )
    for verdict in found:
        if verdict.status == "diverged" and is_right_with_fewer(asker, settings, n):
            fewer = asker.plan.settings.n_threads
            text = (
                f"; with n_threads {fewer} the same run is right, so look at memory that "
                "threads share"
            )
            verdict = replace(verdict, summary=verdict.summary + text)
        yield verdict


def is_right_with_fewer(asker: SliceAsker, settings: Settings, n: int) -> bool:
    """Return True if the prompt is right with the usual number of threads. The long-prompt run
    changes both the length and the number of threads."""
    fewer = replace(settings, n_threads=asker.plan.settings.n_threads)

    def is_right(opened: Opened) -> bool:
        inner = opened.context
        if inner.settings.n_threads != fewer.n_threads:
            return False  # the engine ignores the number of threads
        try:
            return not is_wrong(inner, min(n, inner.settings.n_ctx - STEPS), STEPS)
        except NoAnswer:
            return False

    return fewer != settings and bool(opened_with(asker, fewer, is_right))


def asked_for(n: int, threads: int) -> str:
    return f"with a prompt of {n} tokens at once and {STEPS} after it, {threads} threads"


def weights_of(asker: SliceAsker) -> int:
    """Return the number of weights in the first layers. Embeddings and head are not counted,
    because few of their tokens are kept."""
    layers = min(LAYERS, n_layers(asker.file))
    names = [n for n in first_layers(asker.file, layers).names.values() if n.startswith("blk.")]
    return sum(asker.file.tensors[name].n_elements for name in names)


def opened_with(
    asker: SliceAsker, settings: Settings, work: Callable[[Opened], Found]
) -> Found | None:
    """Open the first model that both engines accept, and return the result of `work`. Return None
    if the engines accept no model, or if an engine gives no logits for it."""
    for way in ways_to_make(asker, min(LAYERS, n_layers(asker.file))):
        made = asker.plan_for_made(lambda file, way=way: way(file, {}))  # type: ignore[misc]
        try:
            opened = asker.open(replace(made, settings=settings))
        except (NoAnswer, BadInput):
            continue
        try:
            few = Request(batches=(Batch.of([0]),))
            outcomes = opened.context.outcomes("evaluate", few)
            if all(isinstance(outcome, Answered) for outcome in outcomes):
                return work(opened)
        finally:
            opened.close()
    return None


def judge_long_prompt(context: Context, opened: Opened, n: int, layers: str) -> list[Verdict]:
    """Judge a prompt of n tokens in one batch, and return the verdicts. Raises NotSteady."""
    inner = opened.context
    n = min(n, inner.settings.n_ctx - STEPS)  # the engine may have fewer cells
    what = f"{asked_for(n, inner.settings.n_threads)}, {layers}"
    if n <= LEAST:
        text = f"no long prompt was sent, because {inner.subject.name} has a context of "
        text += f"{inner.settings.n_ctx} tokens"
        return [context.verdict(SUITE, "not-applicable", text)]
    seconds = seconds_of(inner, n)
    if seconds > PATIENCE and not context.named:
        seconds = min(seconds, seconds_of(inner, n))  # some engines compile for each new length
    if seconds > PATIENCE and not context.named:
        text = f"{what}: not asked, because {inner.subject.name} would take about {seconds:.0f} s"
        text += "; --suite long-context asks anyway"
        return [context.verdict(SUITE, "not-applicable", text)]
    run = Run(words=what, batches=batches_of(inner, n, STEPS), usual=True, known=True)
    try:
        expected, actual = inner.ask_both("evaluate", Request(batches=run.batches))
    except NoAnswer as error:
        left = left_unanswered(error, inner.oracle.name)
        text = f"{what}: {left.summary}"
        # an engine that is slow or refuses such a prompt is not at fault
        slow = left.status == "timed-out" and not hangs(inner, seconds, n)
        slow |= left.status == "not-compared" or error.status == "diverged"
        status = "not-applicable" if slow else left.status
        if status == "timed-out":
            text += f"; shorter prompts suggest about {seconds:.1f} s"
        elif status == "crashed":
            what = f"{what}{of_answered(inner, n)}"
            text = f"{what}: {left.summary}"
        return [context.verdict(SUITE, status, text, error.detail, (SUITE, status))]
    found = further_verdict(inner, run, expected, actual)
    text = f"{what}: {found.summary}"
    if found.status == "diverged":
        text += more_of(inner, run, actual, n)
    return [
        context.verdict(
            SUITE, found.status, text, {**found.detail}, (SUITE, found.status, "prompt")
        )
    ]


def seconds_of(context: Context, n: int) -> float:
    """Estimate the seconds that the subject needs for n tokens, from its times for one token and
    for a usual prompt."""

    def taken(tokens: int) -> float:
        request = Request(batches=batches_of(context, tokens, steps=0))
        began = perf_counter()
        context.subject.ask("evaluate", request)
        return perf_counter() - began

    one, usual = taken(1), taken(context.n_tokens)
    return one + max(usual - one, 0.0) * n / context.n_tokens


def hangs(context: Context, seconds: float, n: int) -> bool:
    """Return True if a run of n tokens should end within the time limit, even if all its time grows
    with the square of the prompt's length, as the time for attention does."""
    return seconds * max(n / context.n_tokens, 1.0) < context.runner.time_limit


def of_answered(context: Context, n: int) -> str:
    """Describe the longest prompt that the engine answers, after it failed on a prompt of n tokens
    or on the tokens after it."""
    asked: list[Outcome] = []

    def fails(tokens: int, steps: int) -> bool:
        context.progress(f"asking for a prompt of {tokens} tokens")
        request = Request(batches=batches_of(context, tokens, steps))
        asked.append(context.subject.ask("evaluate", request))
        return not isinstance(asked[-1], Answered)

    steps = next((steps for steps in (0, STEPS) if fails(n, steps)), None)
    if steps is None:
        return " (asked again, the engine answered)"
    prompt = f"{steps} tokens after a prompt" if steps else "a prompt"
    be = "are" if steps else "is"
    fewest = first_where(lambda tokens: fails(tokens, steps), context.n_tokens, n)
    if any(isinstance(outcome, TimedOut) for outcome in asked):
        return ""
    if fewest == context.n_tokens:
        return f" ({prompt} of {fewest} tokens {be} not answered either)"
    right = f"{prompt} of {fewest - 1} tokens {be} answered"
    return f" ({right}, {prompt} of {fewest} tokens {be} not)"


def first_where(wrong: Callable[[int], bool], least: int, most: int) -> int:
    """Return the smallest number of tokens for which `wrong` is True. It must be True for
    `most`."""
    if wrong(least):
        return least
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if wrong(middle) else (middle, most)
    return most


def more_of(context: Context, run: Run, first: Evaluation, n: int) -> str:
    """Describe a difference in more detail. The difference is reported even if the engine then
    fails. Raises NotSteady if the engine's own runs differ."""
    try:
        shaky = unsteady(context.subject, Request(batches=run.batches), first)
        if shaky and shaky.apart > 2 * context.noise.relative:
            raise NotSteady(f"{context.subject.name} is not deterministic: {shaky}")
        found = shortest_wrong(context, n)
    except NoAnswer as error:
        return f"; the shortest wrong length is unknown: {error}"
    return said_of_length(*found, context.n_tokens) if found else ""


def said_of_length(wrong: int, steps: int, usual: int) -> str:
    """Describe the result of `shortest_wrong` as text for a verdict."""
    if not steps:
        if wrong == usual:
            return f"; the answer to a prompt of {wrong} tokens is wrong as well"
        return f"; a prompt of {wrong - 1} tokens is right, and one of {wrong} tokens is not"
    text = f"; the logits of the prompt are right, and those of {steps} tokens after it are not"
    if wrong == usual:
        return f"{text}; a prompt of {wrong} tokens shows the same error"
    right = f"a prompt of {wrong - 1} tokens does not show this error"
    return f"{text}; {right}, and one of {wrong} tokens does"


def batches_of(context: Context, n: int, steps: int) -> tuple[Batch, ...]:
    """Return a prompt of n tokens, which outputs only its last logits, and single tokens after
    it."""
    raw = Philox(key=context.seed).random_raw(n + steps)
    ids = [int(r >> np.uint64(33)) % context.facts.n_vocab for r in raw]
    prompt = Batch.of(ids[:n])
    prompt.outputs[:-1] = False
    return (prompt, *(Batch.of([ids[n + i]], start=n + i) for i in range(steps)))


def shortest_wrong(context: Context, n: int) -> tuple[int, int] | None:
    """Return the length of the shortest wrong prompt up to n, and the number of tokens after it,
    which is 0 if the prompt itself is wrong. Return None if nothing is wrong, or if the engine has
    another design."""
    steps = next((steps for steps in (0, STEPS) if is_wrong(context, n, steps)), None)
    if steps is None or is_of_another_design(context, steps):
        return None
    return first_where(lambda n: is_wrong(context, n, steps), context.n_tokens, n), steps


def is_of_another_design(context: Context, steps: int) -> bool:
    batches = batches_of(context, context.n_tokens, steps)
    expected, actual = context.ask_both("evaluate", Request(batches=batches))
    if not part(context, np.concatenate(expected.logits), actual):
        return False
    run = Run(words="", batches=batches, known=True)
    return further_verdict(context, run, expected, actual).status == "agreed"


def is_wrong(context: Context, n: int, steps: int) -> bool:
    context.progress(f"a prompt of {n} tokens")
    request = Request(batches=batches_of(context, n, steps))
    expected, actual = context.ask_both("evaluate", request)
    return part(context, np.concatenate(expected.logits), actual)


def bisect_long_prompt(plan: Plan, context: Context) -> Bisection | None:
    """Bisect the shortest wrong prompt, if no op is wrong in the usual run. Return None if no
    prompt is wrong, or if the engine does not accept the model."""
    n = tokens_of(context)

    def work(asker: SliceAsker) -> Bisection | None:
        if n <= LEAST or weights_of(asker) > LARGEST:
            return None
        # in one ubatch, because tensors of several ubatches are not compared
        settings = replace(plan.settings, n_ctx=CELLS, n_ubatch=CELLS, n_threads=THREADS)
        return opened_with(asker, settings, partial(bisection_of, n=n))

    return bisect_on_made(plan, context, work)


def bisection_of(opened: Opened, n: int) -> Bisection | None:
    context = opened.context
    n = min(n, context.settings.n_ctx - STEPS)
    if n <= LEAST or not (shortest := shortest_wrong(context, n)):
        return None
    wrong, steps = shortest
    found = bisect(replace(context, given=batches_of(context, wrong, steps)))
    threads = context.settings.n_threads
    behind = f" and {steps} after it" if steps else ""
    words = f"with a prompt of {wrong} tokens{behind}, {threads} threads, only the first layers"
    return replace(found, asked=words) if found.culprits else None
