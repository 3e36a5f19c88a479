"""Does any answer depend on attention, or on the feed-forward network? An engine without one of
them agrees on a model where it moves nothing beyond the limit, so nothing was compared of it."""

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Verdict
from lockstep.harness.sites import ATTENTION_OUT, FFN_OUT

HALVES = {
    "attention": ("attention", ATTENTION_OUT),
    "ffn": ("the feed-forward network", FFN_OUT),
}
SUITES = ("logits", "logprobs", "decode", "text")  # answers that come of logits


def halves_told(context: Context, verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield a verdict for each half of the layers that moves no logit beyond the limit.

    Engines that show tensors are compared by these. A large model is not run twice more for it: a
    half that moves nothing was made so, and models made for tests are small.
    """
    agreed = {verdict.suite for verdict in verdicts if verdict.status == "agreed"}
    suites = [suite for suite in SUITES if suite in agreed]
    if not suites or "trace" in agreed or not context.facts.is_small:
        return
    truth = np.concatenate(context.noise.logits)
    allowed = float(whole_run(context.noise.relative, largest(truth)).allowed)
    for half, (words, tensors) in HALVES.items():
        without = context.honest.without(context.batches, tensors)
        if without is not None and (np.abs(truth - without) <= allowed).all():
            text = f"no logit depends on {words} beyond the limit: nothing was compared of it"
            yield context.verdict(suites[0], "not-compared", text, {"half": half})
