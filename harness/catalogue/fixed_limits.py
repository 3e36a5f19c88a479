"""Verdicts of limits in common use: one number for every op and every model.

Each limit is applied as its project applies it, to the same kind of data. None of these projects
has suites for tokenizers or files, further runs, batches or caches. An engine that does not answer
counts as found.

NMSE 5e-4 on every op: test-backend-ops of llama.cpp (products and attention; its limit for other
ops is smaller). Here it applies to each op of one prompt, on the inputs of an honest run, which
users do not have.

NMSE 1e-4 on logits: test-llama-archs of llama.cpp. It uses 128 random tokens in one batch, and
compares all positions.

NMSE 1e-2 on logits: check-nmse.py of llama.cpp's model-conversion. Each engine tokenizes "Hello, my
name is" itself. The error of the last token's logits is divided by their variance, not by their
squares.

top-1: the most likely token at each position of the same short prompt.

cosine 0.999: on the same prompt; no known project has a stricter limit. semantic_check.py uses
0.95.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.batch import Batch, encoded_first
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.session import Session
from lockstep.harness.context.suite import Context
from lockstep.harness.records import Answered, Evaluation, Outcome, Request, Site

ON_OPS = "NMSE 5e-4 on every op"
WIDE, NARROW = "NMSE 1e-2 on logits", "NMSE 1e-4 on logits"
TOP, COSINE = "the same top-1", "cosine 0.999"
LIMITS = (ON_OPS, NARROW, WIDE, TOP, COSINE)
TEXT = b"Hello, my name is"
SHORT, LONG = 6, 128  # numbers of tokens
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """Runs of our own honest engine, which the limits use as reference."""

    context: Context
    embeds: bool
    ops: Evaluation
    long: F32
    short: F32


def truth_of(context: Context, *, embeds: bool) -> Truth:
    """Run an honest subject, and return its values as the truth for the limits."""
    session = context.subject
    prompt = context.tokens[: context.n_tokens]
    ops = evaluate_run(context, session, prompt, embeds=embeds, shown=True)
    long = evaluate_run(context, session, long_prompt(context), embeds=embeds)
    short = evaluate_run(context, session, short_prompt(context, session), embeds=embeds)
    for outcome in (ops, long, short):
        assert isinstance(outcome, Answered), outcome
    return Truth(
        context=context,
        embeds=embeds,
        ops=answer_of(ops),
        long=answer_of(long).logits[-1],
        short=answer_of(short).logits[-1],
    )


def answer_of(outcome: Outcome) -> Evaluation:
    assert isinstance(outcome, Answered), outcome
    found: Evaluation = outcome.value
    return found


def long_prompt(context: Context) -> list[int]:
    """Return seeded ids. Their number is LONG, or less if the model or the cache has fewer
    positions."""
    n = min(LONG, context.facts.n_positions or LONG, context.settings.n_ctx)
    # raises NoAnswer if the size is unknown
    n_vocab = len(context.tokens) and context.facts.n_vocab
    raw = Philox(key=[context.seed, LONG]).random_raw(n)
    return [int(r >> np.uint64(33)) % n_vocab for r in raw]


def short_prompt(context: Context, session: Session) -> list[int]:
    """Return the engine's own ids of the text; seeded ids without a vocabulary."""
    if not context.facts.has_vocabulary:
        return context.tokens[:SHORT]
    outcome = session.ask("tokenize", [TEXT])
    ids = outcome.value[0] if isinstance(outcome, Answered) else []
    return ids or context.tokens[:SHORT]


def evaluate_run(
    context: Context,
    session: Session,
    ids: Sequence[int],
    *,
    embeds: bool,
    shown: bool = False,
    replace: Mapping[Site, NDArray[Any]] | None = None,
) -> Outcome:
    batches = encoded_first((Batch.of(ids),), context.facts.decoder_start is not None)
    request = Request(batches=batches, embeddings=embeds, capture=shown, replace=replace or {})
    return session.ask("evaluate", request)


def passed_by(truth: Truth, session: Session) -> dict[str, bool]:
    """Return, for each limit, True if the engine passes it."""
    return {ON_OPS: ops_pass(truth, session), **logits_pass(truth, session)}


def ops_pass(truth: Truth, session: Session) -> bool:
    assert truth.ops.trace is not None
    values = truth.ops.trace.values()
    context = truth.context
    prompt = context.tokens[: context.n_tokens]
    outcome = evaluate_run(
        context, session, prompt, embeds=truth.embeds, shown=True, replace=values
    )
    if not isinstance(outcome, Answered):
        return False
    shown = outcome.value.trace.values()
    wide = {site: v for site, v in values.items() if v.dtype.kind == "f"}
    return all(site in shown and nmse(v, shown[site]) <= 5e-4 for site, v in wide.items())


def logits_pass(truth: Truth, session: Session) -> dict[str, bool]:
    context = truth.context
    prompts = (long_prompt(context), short_prompt(context, session))
    runs = [evaluate_run(context, session, ids, embeds=truth.embeds) for ids in prompts]
    answered = [run.value.logits[-1] for run in runs if isinstance(run, Answered)]
    if len(answered) < len(runs):
        return dict.fromkeys((NARROW, WIDE, TOP, COSINE), False)
    return {NARROW: nmse(truth.long, answered[0]) <= 1e-4, **on_short(truth.short, answered[1])}


def on_short(expected: F32, got: F32) -> dict[str, bool]:
    """Apply the limits for a short prompt; each array is (tokens, vocabulary)."""
    a, b = expected.astype(np.float64), got.astype(np.float64)
    if a.shape != b.shape:
        return dict.fromkeys((WIDE, TOP, COSINE), False)
    return {
        WIDE: nmse(a[-1], b[-1], centre=float(a[-1].mean())) <= 1e-2,
        TOP: bool((a.argmax(axis=1) == b.argmax(axis=1)).all()),
        COSINE: bool((cosine(a, b) >= 0.999).all()),
    }


def nmse(expected: NDArray[np.generic], got: NDArray[np.generic], *, centre: float = 0.0) -> float:
    """Return the sum of squared errors, divided by the sum of squares. `centre` is subtracted from
    the expected values first. NaN passes no limit."""
    a, b = expected.astype(np.float64), got.astype(np.float64)
    if a.shape != b.shape:
        return float("inf")
    if np.array_equal(a, b):
        return 0.0
    with np.errstate(all="ignore"):
        return float(((a - b) ** 2).sum() / ((a - centre) ** 2).sum())


def cosine(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        found: Array = (a * b).sum(axis=1) / lengths
    return found
