"""Greedy decoding. Both engines are compared token by token, on given tokens and on their own
tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch, join_batches, steps_of
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.further_runs import (
    ALONE,
    TOGETHER,
    many_ids,
    n_cells,
)
from lockstep.harness.context.repeats import asked_again
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Request, Verdict
from lockstep.harness.suites.parts.control_tokens import control_token
from lockstep.harness.suites.parts.next_tokens import close_calls, next_tokens
from lockstep.harness.suites.parts.oracles_logits import (
    AS_NEAR,
    WRONG_ORACLE,
    in_one,
    is_honest,
    nearly_chosen,
    oracles_logits,
    whole_truth,
    why_any_choice_agrees,
)
from lockstep.harness.suites.parts.own_text import held_to_its_own
from lockstep.harness.suites.parts.pieces import sides, two_choices
from lockstep.harness.suites.parts.prompts_in_turn import LONGEST, in_turn
from lockstep.harness.suites.parts.threads import several_threads
from lockstep.harness.suites.parts.which_tokens import part
from lockstep.harness.suites.parts.whole_runs import compare_runs

PROMPT = b"Once upon a time"
# name of the questions that a made model gets if this model shows nothing
PROMPTS = "decode: prompts"
TEXT = "decode: text"  # the same as PROMPTS, for engines that show only text
LONGER = "decode/longer text"  # key of verdicts on more tokens than the model itself was asked for
# name of the question to a program that shows only greedy tokens, with several threads
THREADS = "decode: threads"
EXACT_TIE = "an exact tie, where llama.cpp takes the first"
# STEPS: if the user requests more tokens, every model generates all of them. LEAST: a large model
# generates at least so many, which are rarely equal by chance. READ: limit for the bytes of weights
# that these tokens read; llama.cpp needs about a second for them.
STEPS, LEAST, READ = 64, 16, 16 << 30
MOST_TIES = 8  # ties after which an engine is asked to continue, each time from the oracle's text


class Decode(Suite, name="decode"):
    order = 50

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_choice

    def run(self, context: Context) -> Iterator[Verdict]:
        prompt = self.prompt(context)
        n = of_the_whole(context)
        context.progress(f"generating {n} tokens")
        asked = ("greedy", prompt, n)
        free, subject = context.ask_both(*asked)
        more = seeded_behind(context, len(prompt), n)
        batches, every = (
            fewer_reads(context, steps_of(prompt, ids, context.facts.decoder_start))
            for ids in (free, [*free, *more])
        )
        if shows_no_logits(context):
            yield from tokens_alone(context, prompt, batches, free, subject)
            return
        # For a large model, an honest run would cost as much as the runs of both engines. So it is
        # left out unless the suite is named, or until the engines disagree.
        with_honest = context.facts.is_small or context.named
        if with_honest:
            context.honest.begin(in_one(context, every), seed=context.seed, runs=0)
        context.progress(f"decoding {len(every)} batches in both engines")
        expected, actual = context.ask_both("evaluate", Request(batches=every))
        truth = np.concatenate(expected.logits)
        if with_honest or part(context, truth, actual):
            truth = whole_truth(context, every)
        whole = compare_runs(context, "decode", every, expected, actual, truth)
        yield whole
        if whole.detail.get("at_fault") in ("oracle", "both"):
            yield context.verdict("decode", "not-compared", WRONG_ORACLE)
            return
        first = -len(free) - len(more)
        rows = slice(first, first + len(free) or None)
        before, own = (np.concatenate(e.logits)[rows] for e in (expected, actual))
        verdict = judge_tokens(context, batches, before, own, free, subject)
        if verdict.status == "excused":  # from the tie on, each engine continues its own text
            written = steps_of(prompt, subject, context.facts.decoder_start)
            verdict = held_to_its_own(context, verdict, fewer_reads(context, written), subject)
        if verdict.status == "diverged":
            yield verdict
            yield from asked_again(context, "decode", subject, *asked)
            return
        try:
            control = list(control_token(context, len(prompt)))
        except NoAnswer:
            yield verdict
            raise
        beside = [v.summary for v in control if v.status in ("agreed", "not-applicable")]
        yield replace(verdict, summary="; ".join([verdict.summary, *beside]))
        others = [v for v in control if v.status not in ("agreed", "not-applicable")]
        yield from others or own_answers(context)

    def prompt(self, context: Context) -> list[int]:
        if not context.facts.has_vocabulary:
            return context.tokens[:4]
        ids: list[int] = context.ask(context.oracle, "tokenize", [context.prompt])[0]
        # a vocabulary may have no token for any of these characters
        return ids or context.tokens[:4]


def own_tokens(context: Context) -> Iterator[Verdict]:
    """Ask about tokens that are never the likeliest, on a model where each token is the likeliest
    somewhere. Then ask several prompts one after the other."""
    yield from until_wrong(lambda: context.asked_on_made_models("decode"), lambda: texts(context))


def texts(context: Context) -> Iterator[Verdict]:
    """Yield verdicts on several prompts one after the other, and on the text after one prompt."""
    known: list[Verdict] = []
    if context.facts.is_small and context.facts.decoder_start is None:
        context.progress("prompts in turn")
        for verdict in in_turn(context, context):  # the engine may crash after this question
            known.append(verdict)
            yield verdict
    all_of_it = of_the_whole(context) == context.n_steps
    if not (all_of_it and any(shows_cuts(context, verdict) for verdict in known)):
        for verdict in context.asked_on_made_models(PROMPTS):
            known.append(verdict)
            yield verdict
    wrong = any(verdict.status == "diverged" for verdict in known)
    if all_of_it and not wrong and context.facts.is_small and TEXT in context.on_made_models:
        yield from context.asked_on_made_models(TEXT)
    elif not (all_of_it or any(verdict.key == LONGER for verdict in known)):
        yield from whole_text(context)


def shows_cuts(context: Context, verdict: Verdict) -> bool:
    """Return True if a prompt of the verdict was wrong, or longer than half the context, so that it
    would reveal an engine that reads no more than that. Because of the noise of a quantised model,
    often no long prompt has a certain next token."""
    longest: int = verdict.detail.get(LONGEST, 0)
    return verdict.status == "diverged" or longest > n_cells(context) // 2


def whole_text(context: Context) -> Iterator[Verdict]:
    """Compare the whole greedy text of a large model that no smaller model can replace."""
    prompt = Decode().prompt(context)
    context.progress(f"generating {context.n_steps} tokens")
    free, subject = context.ask_both("greedy", prompt, context.n_steps)
    batches = fewer_reads(context, steps_of(prompt, free, context.facts.decoder_start))
    yield from greedy_alone(context, prompt, batches, free, subject)


def own_answers(context: Context) -> Iterator[Verdict]:
    """Yield verdicts on an engine's own choices, with close calls last. The choices also reveal
    engines that never choose some token, or that reuse another prompt's cache."""
    yield from until_wrong(lambda: own_tokens(context), lambda: own_choices(context))


def until_wrong(*questions: Callable[[], Iterator[Verdict]]) -> Iterator[Verdict]:
    """Ask the questions in order until something differs."""
    wrong = False
    for question in questions:
        for verdict in () if wrong else question():  # an engine may crash after this question
            yield verdict
            wrong = wrong or verdict.status == "diverged"


def own_choices(context: Context) -> Iterator[Verdict]:
    """Check how the engine chooses. With right logits it may still choose from rounded, sorted or
    incomplete logits. The choice does not depend on the model's size, so large models are not
    tested."""
    if context.facts.is_small:
        yield from close_calls(context)


def of_the_whole(context: Context) -> int:
    """Return how many tokens the whole model generates. A large model generates fewer tokens,
    within a budget of bytes read, if its first layer can generate all of them instead."""
    n, encodes = context.n_steps, context.facts.decoder_start is not None
    if n > STEPS or encodes or PROMPTS not in context.on_made_models:
        return n
    return min(n, max(LEAST, READ // max(1, context.facts.n_bytes)))


def seeded_behind(context: Context, prompt: int, n: int) -> list[int]:
    """Return random ids in place of the tokens that the model does not generate. So each layer
    still gets batches of all sizes, and fills as many cells of the cache. prompt: the prompt's
    length; n: the number of generated tokens."""
    left = min(context.n_steps - n, n_cells(context) - n - prompt)
    return many_ids(context, left) if left > 0 else []


def fewer_reads(context: Context, batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """Return the same tokens in fewer batches for a large model. The run that generates reads all
    weights once for each token. The run with fewer batches reads them less often."""
    if context.facts.is_small:
        return batches
    n = len(batches) - sum(len(batch) == 1 for batch in batches) + ALONE
    found, rest = list(batches[:n]), iter(batches[n:])
    for size in cycle(TOGETHER):
        some = tuple(islice(rest, size))
        if not some:
            return tuple(found)
        found.append(join_batches(some))
    raise AssertionError("a cycle has no end")


def shows_no_logits(context: Context) -> bool:
    levels = context.subject_info.levels
    return levels is not None and "logits" not in levels


def tokens_alone(
    context: Context,
    prompt: Sequence[int],
    batches: Sequence[Batch],
    oracle: Sequence[int],
    subject: Sequence[int],
) -> Iterator[Verdict]:
    """Ask the questions for an engine without logits, one after the other, until something is
    wrong."""
    questions: tuple[Callable[[], Iterator[Verdict]], ...] = (
        lambda: greedy_alone(context, prompt, batches, oracle, subject),
        lambda: next_tokens(context),
        lambda: close_calls(context),
        lambda: control_token(context, len(prompt), may_refuse=True),
        lambda: own_tokens(context),
        lambda: several_threads(context, THREADS),
    )
    for question in questions:
        found = list(question())
        yield from found
        if any(verdict.status == "diverged" for verdict in found):
            n = of_the_whole(context)
            yield from asked_again(context, "decode", subject, "greedy", prompt, n)
            return


def greedy_alone(
    context: Context,
    prompt: Sequence[int],
    batches: Sequence[Batch],
    oracle: Sequence[int],
    subject: Sequence[int],
) -> Iterator[Verdict]:
    """Compare an engine that offers only greedy tokens. After a tie, the oracle's text becomes the
    prompt, so that later tokens are compared too."""
    logits = oracles_logits(context, batches)
    if logits is None:
        yield context.verdict("decode", "not-compared", WRONG_ORACLE)
        return
    logits, start = logits[-len(oracle) :], 0
    for _ in range(MOST_TIES):
        rest = slice(start, None)
        found = judge_tokens(context, batches, logits[rest], None, oracle[rest], subject, start)
        yield found
        if found.status != "excused" or (start := found.detail["step"] + 1) == len(oracle):
            return
        ids = [*prompt, *oracle[:start]]
        subject = context.ask(context.subject, "greedy", ids, len(oracle) - start)
    text = f"the {len(oracle) - start} tokens after {MOST_TIES} ties were not compared"
    yield context.verdict("decode", "not-compared", text)


def judge_tokens(
    context: Context,
    batches: Sequence[Batch],
    logits: F32,
    subjects: F32 | None,
    oracle: Sequence[int],
    subject: Sequence[int],
    start: int = 0,
) -> Verdict:
    """Judge greedy tokens, and return the verdict. logits: the oracle's logits before each of its
    tokens, (steps, vocabulary); subjects: the subject's logits before the same tokens, or None;
    start: the number of the first token.

    The oracle's own tokens are checked as well: each must be the largest of the oracle's logits.
    After a tie the texts differ, so the verdict counts the subject's choices on the oracle's text.
    """
    if why := why_any_choice_agrees(context, logits):
        return context.verdict("decode", "not-compared", why)
    rows = np.arange(len(logits))
    behind = logits.max(axis=1) - logits[rows, list(oracle)]
    first = int(np.flatnonzero(behind)[0]) if behind.any() else len(oracle)
    first = next((i for i in range(first) if oracle[i] != subject[i]), first)
    if first == len(oracle):
        text = f"{len(oracle)} greedy tokens are the same"
        return context.verdict(
            "decode", "agreed", f"{text} from token {start} on" if start else text
        )
    a, b = oracle[first], subject[first]
    margins = logits[first].max() - logits[first, [a, b]]
    size = largest(logits[first])
    bound = whole_run(context.noise.relative, size)
    if margins.max() > 2 * bound.allowed:
        bound = whole_run(context.noise_on(batches), size)
    allowed = float(bound.allowed)
    detail: dict[str, Any] = {"step": start + first, "expected": a, "actual": b, "allowed": allowed}
    detail |= {"margin": float(margins[1]), "margin_of_oracle": float(margins[0])}
    detail["reason"] = (
        "each of two logits may be off by this limit, and their distance by twice this "
        f"limit: {bound.reason}"
    )
    detail["sides"] = sides(context, oracle, subject)
    text = f"greedy token {start + first} is {two_choices(a, b, margins)}"
    if not np.isfinite(allowed):
        return context.verdict(
            "decode", "not-compared", f"{text}; there is no limit for this model", detail
        )
    if margins.max() <= 2 * allowed:
        text = f"{text}, {EXACT_TIE if not margins.any() else 'a tie within the noise'}"
        if subjects is not None:
            detail |= choices(oracle, subjects)
            text += f"; on the oracle's text {detail['same_choices']} of {len(oracle)} choices are "
            text += "the same"
        return context.verdict("decode", "excused", text, detail)
    wrong = [r for r, m in zip(("oracle", "subject"), margins, strict=True) if m > 2 * allowed]
    chosen = partial(nearly_chosen, [b], first=first - len(oracle))
    if wrong == ["subject"] and is_honest(context, batches, chosen):
        text += f", and {AS_NEAR}"
        return context.verdict("decode", "excused", text, detail)
    detail["at_fault"] = "both" if len(wrong) == 2 else wrong[0]
    return context.verdict("decode", "diverged", text, detail, key=("decode", "token"))


def choices(oracle: Sequence[int], subjects: F32) -> dict[str, Any]:
    """Compare the subject's choices on the oracle's text with the oracle's choices. Return the
    number of equal choices, and the different choices as (step, oracle's token, subject's
    token)."""
    own = subjects.argmax(axis=1).tolist()
    other = [(step, a, b) for step, (a, b) in enumerate(zip(oracle, own, strict=True)) if a != b]
    return {"same_choices": len(oracle) - len(other), "other_choices": other}
