"""Consistency of an engine: its greedy tokens must follow from its own logits, also after a tie.

After a tie the engines write different texts, and the oracle's logits no longer apply. So an engine
with logits is asked for the logits of its own text. An engine whose generation loop has wrong
positions or a wrong cache has right logits, but writes other tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.context.enough_runs import chooses_experts, noise_of_subject
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Answered, Request, Verdict


def held_to_its_own(
    context: Context, tie: Verdict, batches: Sequence[Batch], text: Sequence[int]
) -> Verdict:
    """Judge a text by the engine's own logits, and return the verdict. tie: the verdict that
    excuses the tie; batches: the prompt, and all tokens of the text except the last; text: the
    tokens of the text."""
    context.progress("the logits of the engine's own text")
    outcome = context.subject.ask("evaluate", Request(batches=tuple(batches)))
    if not isinstance(outcome, Answered):
        return add_words(tie, "the engine's text after it was not compared: no logits")
    logits = np.concatenate(outcome.value.logits)[-len(text) :]
    if not np.isfinite(logits).all():
        return add_words(
            tie, "the engine's text after it was not compared: its logits are not finite"
        )
    margins = logits.max(axis=1).astype(np.float64) - logits[np.arange(len(text)), list(text)]
    size = largest(logits)
    # honest runs may differ by as much between the two ways to ask
    bound = whole_run(context.noise.relative, size)
    if margins.max() > 2 * bound.allowed:
        bound = whole_run(noise_of_subject(context, batches), size)
    allowed = float(bound.allowed)
    if not np.isfinite(allowed):
        return add_words(tie, "the engine's text after it was not compared: there is no limit")
    if margins.max() <= 2 * allowed:
        return add_words(
            tie,
            f"all {len(text)} tokens are the choice of the engine's own logits, within the noise",
        )
    wrong = margins > 2 * allowed
    if chooses_experts(context) and 2 * wrong.sum() <= len(text):
        return add_words(
            tie, "the engine's text after it was not compared: it may choose other experts"
        )
    step = int(np.flatnonzero(wrong)[0])
    best = int(logits[step].argmax())
    message = (
        f"greedy token {step} is {text[step]}, and the engine's own logits prefer {best} "
        f"by {margins[step]:.2g} (allowed {2 * allowed:.2g}): look at how generation "
        "differs from evaluation: positions, cache, sampling"
    )
    detail: dict[str, Any] = {"step": step, "actual": text[step], "expected": best}
    detail |= {"margin": float(margins[step]), "allowed": allowed, "at_fault": "subject"}
    detail["reason"] = (
        "each of two logits may be off by this limit, and their distance by twice this "
        f"limit: {bound.reason}"
    )
    return context.verdict("decode", "diverged", message, detail, key=("decode", "own text"))


def add_words(tie: Verdict, words: str) -> Verdict:
    return replace(tie, summary=f"{tie.summary}; {words}")
