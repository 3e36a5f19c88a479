"""The loss by quantisation: how much the file's probabilities differ from the checkpoint's."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.check.check import Plan, open_plan
from lockstep.harness.context.suite import Context
from lockstep.harness.originals.findings import QuantisationLoss
from lockstep.harness.parallel.children import Say
from lockstep.harness.records import Evaluation, Request

PROMPTS = 8  # number of prompts of random tokens
QUANTILE = 2.3646  # quantile of Student's t with PROMPTS - 1 degrees of freedom, two-sided 95 %


def run_for_loss(plan: Plan, say: Say) -> None:
    """Send progress as texts, and at the end the QuantisationLoss."""
    opened = open_plan(plan, say)
    try:
        say(measure_loss(opened.context))
    finally:
        opened.close()


def measure_loss(context: Context) -> QuantisationLoss:
    """Return the loss over all positions of the prompts. Raises NoAnswer."""
    losses, same, positions = [], [], 0
    for number in range(PROMPTS):
        batches = replace(context, seed=context.seed + number, begun={}).batches
        context.progress(f"loss by quantising: prompt {number + 1} of {PROMPTS}")
        file, original = context.ask_both("evaluate", Request(batches=batches))
        kl, top = divergences(original, file)
        losses.append(float(kl.mean()))
        same.append(float(top.mean()))
        positions += len(kl)
    return QuantisationLoss(
        positions=positions,
        kl=float(np.mean(losses)),
        kl_error=half_width(losses),
        same_top=float(np.mean(same)),
        same_top_error=half_width(same),
    )


def divergences(
    original: Evaluation, file: Evaluation
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the Kullback-Leibler divergence of each position in nats, and True for each position
    with the same most likely token. Padding tokens are omitted, because only one of the models has
    them."""
    runs = [np.concatenate(each.logits) for each in (original, file)]
    n_tokens = min(rows.shape[-1] for rows in runs)
    p, q = (log_softmax(rows[:, :n_tokens]) for rows in runs)
    kl = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q)).sum(axis=-1)
    return kl, p.argmax(axis=-1) == q.argmax(axis=-1)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return found


def half_width(means: list[float]) -> float:
    """Return half of the 95 % confidence interval of a mean. It is computed from the means of
    prompts, because the positions of one prompt depend on each other."""
    return float(QUANTILE * np.std(means, ddof=1) / np.sqrt(len(means)))
