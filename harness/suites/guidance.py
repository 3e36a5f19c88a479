"""Guidance, compared with two runs of the oracle. Engines answer `guide` with guided logits.

llama.cpp no longer has guidance, so Lockstep uses its own definition (engine/guidance.py). It is
applied to llama.cpp's logits of both prompts. A constant added to a row changes no probability, so
rows are compared as log-probabilities. The limit is the noise of both runs, each multiplied by its
share.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.guidance import guide, log_softmax
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.records import Request, Verdict
from lockstep.harness.suites.parts.offered import not_asked_of_sessions

NAME = "guidance"
QUESTION = "guide"
SCALES = (1.5, 3.0, 0.5, 1.0)
STEPS = 2  # tokens after both prompts


class Guidance(Suite, name=NAME):
    order = 48
    expected = False  # False: most engines offer no guidance

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        lacks = "the model has no prompt of tokens, so a second prompt cannot guide it"
        if (said := not_asked_of_sessions(context, QUESTION, NAME, lacks)) is not None:
            yield from said
            return
        asked = GuidedRun(context)
        for scale in SCALES:
            try:
                verdict = asked.verdict(scale)
            except NoAnswer as error:
                verdict = context.verdict(NAME, error.status, error.summary, error.detail)
            yield verdict
            if verdict.status != "agreed":
                return


class GuidedRun:
    """Two prompts of different lengths, followed by the same tokens."""

    def __init__(self, context: Context) -> None:
        self.context = context
        ids = context.tokens
        n = context.n_tokens
        after = [ids[n + i] for i in range(STEPS)]
        self.prompt = batches_of(ids[:n], after)
        self.negative = batches_of([*ids[n // 2 : n], ids[0]], after)

    @cached_property
    def oracle(self) -> tuple[F32, F32]:
        """Return the logits after the prompt and the logits after the negative prompt, each (rows,
        vocabulary)."""
        both = (self.prompt, self.negative)
        runs = (
            self.context.ask(self.context.oracle, "evaluate", Request(batches=batches))
            for batches in both
        )
        first, second = (np.concatenate(run.logits) for run in runs)
        return first, second

    @cached_property
    def noise(self) -> tuple[float, float]:
        """Return the limits of the logits in the two runs, each twice the noise of honest runs."""
        found = (
            2 * self.context.noise_on(batches) * float(np.abs(logits).max(initial=0.0))
            for batches, logits in zip((self.prompt, self.negative), self.oracle, strict=True)
        )
        first, second = found
        return first, second

    def verdict(self, scale: float) -> Verdict:
        context = self.context
        context.progress(f"guidance with scale {scale:g}")
        # the oracle's logits come first: without them there is no limit
        expected = log_softmax(guide(*self.oracle, scale))
        # twice the noise of each run, because the sum of a row may be off by the largest error too
        allowed = 2 * (abs(scale) * self.noise[0] + abs(1 - scale) * self.noise[1])
        moved = float(np.abs(expected - log_softmax(self.oracle[0])).max(initial=0.0))
        if not np.isfinite(expected).all() or (scale != 1 and not moved > allowed):
            text = f"scale {scale:g}: guidance moves llama.cpp's logits by less than their noise"
            return context.verdict(NAME, "not-compared", text, {"scale": scale, "moved": moved})
        asked = (self.prompt, self.negative, scale)
        found = np.concatenate(context.ask(context.subject, QUESTION, *asked))
        actual = log_softmax(found)
        off = np.abs(actual - expected)
        worst = float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))
        row = int(np.nan_to_num(off, nan=np.inf).max(axis=-1).argmax())
        detail: dict[str, Any] = {"scale": scale, "row": row, "apart": worst, "allowed": allowed}
        how = f"scale {scale:g}: log-probabilities are {worst:.2g} apart (allowed {allowed:.2g})"
        if worst <= allowed:
            return context.verdict(NAME, "agreed", how, detail)
        text = f"{how}, most at row {row} of {len(expected)}"
        return context.verdict(NAME, "diverged", text, detail, (NAME, "value"))


def batches_of(prompt: list[int], after: list[int]) -> tuple[Batch, ...]:
    steps = (Batch.of([token], start=len(prompt) + i) for i, token in enumerate(after))
    return Batch.for_next(prompt), *steps
