"""Does any answer depend on attention, or on the feed-forward network? An engine without one of
them agrees on a model where it moves nothing beyond the limit, so nothing was compared of it."""

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Verdict
from lockstep.harness.sites import ATTENTION_OUT, FFN_OUT

HALVES = {
    "attention": ("attention", ATTENTION_OUT),
    "ffn": ("the feed-forward network", FFN_OUT),
}
BY_LOGITS = ("logits", "logprobs")  # suites
BY_CHOICE = ("decode", "text")


def halves_told(context: Context, verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield a verdict for each half of the layers of which the suites that agree say nothing.

    Engines that show tensors are compared by these. A large model is not run twice more for it: a
    half that moves nothing was made so, and models made for tests are small.
    """
    agreed = {verdict.suite for verdict in verdicts if verdict.status == "agreed"}
    by_logits = any(suite in agreed for suite in BY_LOGITS)
    suites = [suite for suite in (*BY_LOGITS, *BY_CHOICE) if suite in agreed]
    if not suites or "trace" in agreed or not is_small(context.file):
        return
    truth = np.concatenate(context.noise.logits)
    allowed = float(whole_run(context.noise.relative, largest(truth)).allowed) if by_logits else 0.0
    what = "logit" if by_logits else "likeliest token"
    for half, (words, tensors) in HALVES.items():
        without = context.honest.without(context.batches, tensors)
        if without is not None and not is_told(truth, without, allowed, by_logits=by_logits):
            text = f"no {what} depends on {words} beyond the limit: nothing was compared of it"
            yield context.verdict(suites[0], "not-compared", text, {"half": half})


def is_told(truth: F32, without: F32, allowed: float, *, by_logits: bool) -> bool:
    """Return True if an engine whose logits are `without` differs from the truth."""
    if by_logits:
        return not bool((np.abs(truth - without) <= allowed).all())
    return bool((truth.argmax(axis=-1) != without.argmax(axis=-1)).any())
