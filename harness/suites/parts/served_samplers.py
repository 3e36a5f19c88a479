"""Samplers of a server, tested by lists after its samplers, and by many draws."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.quants.base import F32
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.harness.context.suite import BUSY, Context, NoAnswer
from lockstep.harness.judging.candidates import off_from, read_list
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.known.samplers import describe_accident
from lockstep.harness.records import (
    PART,
    Answered,
    DrawAnswer,
    DrawRequest,
    Rejected,
    Request,
    Unanswerable,
    Verdict,
)
from lockstep.harness.samplers.describe import describe_drawn, describe_stages
from lockstep.harness.samplers.drawn import Labels, NextToken
from lockstep.harness.samplers.probabilities import probabilities_of
from lockstep.harness.samplers.served import (
    MAX_LISTED,
    NotSaid,
    Result,
    ServedPart,
    ServedRun,
)
from lockstep.harness.suites.logprobs import honest_run_of, names
from lockstep.harness.suites.parts.control_tokens import ids_of_control

LEVEL = "draw"
TEXT = b"One day the cat and the dog saw the cat and the ball, and the cat said"
# order of the prompt's tokens: its end occurs twice before
PATTERN = (0, 1, 2, 0, 3, 0, 1, 2, 4, 0, 1, 2)
# prompts to choose from: penalties show best if a repeated token is a likely next token
PROMPTS = 12
# results without a comparison, with the reason that reports give
LEFT_OUT = {
    Result.UNSAID: "this server has no parameters for them",
    Result.IGNORED: "this interface does not promise them, and they have no effect",
    Result.UNTOLD: "no chain shows them on these logits",
    Result.UNASKED: "servers are not asked for them",
}


def compare_served(context: Context, suite: str) -> Iterator[Verdict]:
    """Yield verdicts on the samplers that the server's interface can express."""
    run = begin_run(context)
    results = list[ServedPart]()
    for found in run.results():
        results.append(found)
        if found.result is Result.WRONG:
            yield wrong_verdict(context, suite, found)
        elif found.result is Result.RIGHT:
            text = f"{found.part}: {count_chains(found)}"
            yield context.verdict(suite, "agreed", text, {PART: found.part, "draws": found.draws})
        for accident in found.accidents:
            text = f"{found.part} as known for llama.cpp: {describe_accident(accident)}"
            detail = {"known": accident.name, PART: accident.name}
            yield context.verdict(suite, "excused", text, detail)
    right = any(found.result in (Result.RIGHT, Result.WRONG) for found in results)
    for result, words in LEFT_OUT.items():
        parts = [found.part for found in results if found.result is result]
        if parts:
            text = f"not compared ({words}): {', '.join(parts)}"
            facts = {PART: result.name.lower(), "samplers": parts, "requests": run.requests}
            yield context.verdict(suite, "excused" if right else "not-compared", text, facts)


def count_chains(found: ServedPart) -> str:
    ways = [f"{found.lists} lists"] * bool(found.lists) + [f"{found.draws} draws"] * bool(
        found.draws
    )
    return f"{' and '.join(ways)} match the definition"


def wrong_verdict(context: Context, suite: str, found: ServedPart) -> Verdict:
    name = context.subject.name
    detail: dict[str, Any] = {
        PART: found.part,
        "at_fault": "subject",
        "chain": [*map(dict, found.chain)],
    }
    key = [suite, found.part]
    if (off := found.difference) is None:
        text = f"{name}: {found.part}: a repeated seed gives other tokens"
        if found.why:
            text = f"{name}: {found.part} forbid nothing: {found.why}"
        return context.verdict(suite, "diverged", text, detail, key)
    where = describe_stages(found.chain)
    detail |= {"wrong": off.kind.name, "tokens": [*off.tokens], "draws": off.draws}
    detail |= {"low": off.low, "high": off.high, "actual": off.actual, "log_p": off.log_p}
    detail |= {"before": [*off.before]}
    text = f"{name}: {where}: {describe_drawn(off)}"
    return context.verdict(suite, "diverged", text, detail, [*key, off.kind.name])


# --- questions ------------------------------------------------------------------------------------


def begin_run(context: Context) -> ServedRun:
    """Begin a run. Raises NoAnswer if the samplers cannot be judged."""
    prompt, ids = choose_prompt(context)
    words = words_of(context)
    token = next_token(context, prompt, ids, words)

    def ask(request: DrawRequest) -> DrawAnswer | NotSaid:
        outcome = context.subject.ask(LEVEL, request)
        if isinstance(outcome, Answered):
            answer: DrawAnswer = outcome.value
            return answer
        if isinstance(outcome, Unanswerable | Rejected) and not getattr(outcome, "declared", False):
            return NotSaid(why=outcome.message)
        context.answer(context.subject, LEVEL, outcome)
        raise AssertionError("an outcome without an answer raises")

    return ServedRun(
        token=token,
        labels=labels_for(context, len(token.row), words),
        prompt=prompt,
        ask=ask,
        find_token=None if isinstance(prompt, bytes) else partial(find_token, context, prompt),
        progress=context.progress,
        seed=context.seed * 100_000,
    )


def next_token(
    context: Context,
    prompt: tuple[int, ...] | bytes,
    ids: Sequence[int],
    words: TokenizerWords | None,
) -> NextToken:
    """Return the logits after a prompt, with what samplers use. Raises NoAnswer if no honest limit
    or no honest run fits the server's list."""
    batches = (Batch.for_next(ids),)
    row = context.ask(context.oracle, "evaluate", Request(batches=batches)).logits[0][-1]
    allowed = float(whole_run(context.noise_on(batches), largest(row)).allowed)
    if not np.isfinite(allowed) or not np.isfinite(row.max()):
        raise NoAnswer("not-compared", "honest logits of this model have no limit", {})
    row = row_of_server(context, prompt, batches, row, allowed)
    return NextToken(row=row, noise=allowed, accepted=tuple(ids), words=words)


def find_token(
    context: Context, prompt: tuple[int, ...], before: tuple[int, ...]
) -> NextToken | None:
    """Return the logits after a prompt and the tokens that follow it; None if the server's logits
    differ there, because draws then prove nothing about samplers."""
    ids = (*prompt, *before)
    try:
        return next_token(context, ids, ids, None)
    except NoAnswer as error:
        if error.status != "not-compared" or BUSY in error.detail:
            raise
        return None


def choose_prompt(context: Context) -> tuple[tuple[int, ...] | bytes, list[int]]:
    """Return a prompt in the server's form, and its ids."""
    if not context.subject_info.text_only:
        ids = max(prompts_of(context.tokens), key=lambda ids: repeated_share(context, ids))
        return tuple(ids), ids
    if not context.facts.has_vocabulary:
        text = f"{context.subject.name} takes only texts, and the file has no vocabulary"
        raise NoAnswer("not-compared", text, {})
    return TEXT, context.ask(context.oracle, "tokenize", [TEXT])[0]


def prompts_of(tokens: Sequence[int]) -> list[list[int]]:
    return [
        [tokens[(start + i) % len(tokens)] for i in PATTERN]
        for start in range(min(PROMPTS, len(tokens)))
    ]


def repeated_share(context: Context, ids: Sequence[int]) -> float:
    """Return the oracle's probability that the next token is the prompt's first token, which is the
    most frequent token of the prompt."""
    run = context.ask(context.oracle, "evaluate", Request(batches=(Batch.for_next(ids),)))
    return float(probabilities_of(run.logits[0][-1]).p[ids[0]])


def row_of_server(
    context: Context,
    prompt: tuple[int, ...] | bytes,
    batches: tuple[Batch, ...],
    row: F32,
    allowed: float,
) -> F32:
    """Return the logits that match the server's list: the oracle's logits, or the logits of an
    honest run of another design. Raises NoAnswer if none match, because draws then prove nothing
    about samplers."""
    if "logprobs" not in (context.subject_info.levels or ()):
        return row
    prefix = prompt if isinstance(prompt, bytes) else list(prompt)
    lists = context.ask(context.subject, "logprobs", [prefix], min(MAX_LISTED, len(row)))
    listed = read_list(lists[0], names(context, lists))
    if not listed.candidates or off_from(listed, row, allowed) is None:
        return row
    other = honest_run_of(context, batches, [listed])
    if other is None:
        text = "the server's logits differ before its samplers (suite logprobs)"
        raise NoAnswer("not-compared", text, {PART: "logits"})
    return np.asarray(other[-1], np.float32)


def words_of(context: Context) -> TokenizerWords | None:
    try:
        return TokenizerWords(context.tokenizer)
    except EngineError:
        return None


def labels_for(context: Context, n: int, words: TokenizerWords | None) -> Labels:
    """Return the labels of the tokens to test. Control tokens and ends of text are excluded,
    because some servers hide them."""
    if words is None:
        return Labels.by_id(n, ())
    unseen: Sequence[int] = sorted({*words.ends, *ids_of_control(context).tolist()})
    if context.subject_info.text_only or "greedy" not in (context.subject_info.levels or ()):
        return Labels.by_text(words.pieces[:n], unseen)
    return Labels.by_id(n, unseen)
