"""Checks that the answers depend on attention and on the feed-forward network. In some models,
removing one of the two changes no answer by more than the limit. An engine that lacks this half
agrees on such a model, so the half was not compared."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Verdict
from lockstep.harness.sites import ATTENTION_OUT, FFN_OUT
from lockstep.harness.suites.decode import shows_no_logits

HALVES = {
    "attention": ("attention, or the scan in its place,", ATTENTION_OUT),
    "ffn": ("the feed-forward network", FFN_OUT),
}
BY_LOGITS = ("logits", "logprobs")  # suites that show logits
BY_CHOICE = ("decode", "text")  # suites that show only the most likely token


def halves_told(context: Context, verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield a "not-compared" verdict for attention and for the feed-forward network, if removing
    its products changes no answer by more than the limit. The answers are logits, or the most
    likely tokens for engines that show no logits.

    Engines that show tensors need no such verdict. Large models are skipped, because the check
    needs two more runs, and a half without effect occurs in small models made for tests.
    """
    agreed = {verdict.suite for verdict in verdicts if verdict.status == "agreed"}
    suites = [suite for suite in (*BY_LOGITS, *BY_CHOICE) if suite in agreed]
    if not suites or "trace" in agreed or not context.facts.is_small:
        return
    with suppress(NoAnswer, EngineError):  # our engine may be unable to compute the graph
        truth = np.concatenate(context.noise.logits)
        allowed = float(whole_run(context.noise.relative, largest(truth)).allowed)
        for half, (words, tensors) in HALVES.items():
            without = context.honest.without(context.batches, tensors)
            if without is None:
                continue
            what, same = "logit", is_within(truth, without, allowed)
            if not agreed & {*BY_LOGITS} and shows_no_logits(context):
                what, same = "likeliest token", chooses_alike(truth, without)
            if same:
                text = f"{words} cannot be compared: removing it moves no {what} beyond the limit"
                yield context.verdict(suites[0], "not-compared", text, {"half": half})


def is_within(truth: F32, without: F32, allowed: float) -> bool:
    """Return True if no logit differs by more than `allowed`; False if the limit or a logit is
    NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(allowed) and (np.abs(truth - without) <= allowed).all())


def chooses_alike(truth: F32, without: F32) -> bool:
    """Return True if the most likely token of each row is the same."""
    return bool((truth.argmax(axis=-1) == without.argmax(axis=-1)).all())
