"""Do both engines stay together token by token: on given tokens, and on their own?"""

from collections.abc import Iterator, Sequence

import numpy as np

from engine.batch import Batch
from engine.quants.base import F32
from harness.compare import largest
from harness.records import Evaluation, Request, Verdict
from harness.suites.base import Context, Suite
from harness.suites.logits import compared
from harness.tolerances import whole_run

PROMPT = b"Once upon a time"


class Decode(Suite, name="decode"):
    order = 50

    def run(self, context: Context) -> Iterator[Verdict]:
        prompt = self.prompt(context)
        context.progress(f"generating {context.n_steps} tokens")
        free = context.ask(context.oracle, "greedy", prompt, context.n_steps)
        request = Request(batches=steps_of(prompt, free))
        context.progress(f"decoding {len(request.batches)} batches in both engines")
        expected: Evaluation = context.ask(context.oracle, "evaluate", request)
        actual: Evaluation = context.ask(context.subject, "evaluate", request)
        yield compared(context, "decode", request.batches, expected, actual)
        subject = context.ask(context.subject, "greedy", prompt, context.n_steps)
        before = np.concatenate(expected.logits)[len(prompt) - 1 :]
        yield judged(context, request.batches, before, free, subject)

    def prompt(self, context: Context) -> list[int]:
        if not context.has_vocabulary:
            return context.tokens[:4]
        ids: list[int] = context.ask(context.oracle, "tokenize", [PROMPT])[0]
        return ids


def steps_of(prompt: Sequence[int], free: Sequence[int]) -> tuple[Batch, ...]:
    """The prompt, then one batch for every token but the last, whose logits nobody needs."""
    steps = [Batch.of([token], start=len(prompt) + i) for i, token in enumerate(free[:-1])]
    return (Batch.of(prompt), *steps)


def judged(
    context: Context,
    batches: Sequence[Batch],
    logits: F32,
    oracle: Sequence[int],
    subject: Sequence[int],
) -> Verdict:
    """logits: the oracle's before each of its tokens, (steps, vocabulary)."""
    first = next((i for i, (a, b) in enumerate(zip(oracle, subject, strict=True)) if a != b), None)
    if first is None:
        return context.verdict("decode", "agreed", f"{len(oracle)} greedy tokens are the same")
    a, b = oracle[first], subject[first]
    margin = float(logits[first, a] - logits[first, b])
    size = largest(logits[first])
    allowed = float(whole_run(context.noise.relative, size).allowed)
    if margin > 2 * allowed:
        allowed = float(whole_run(context.noise_on(batches), size).allowed)
    detail = {"step": first, "expected": a, "actual": b, "margin": margin, "allowed": allowed}
    text = f"greedy token {first} is {b}, expected {a}; the two logits are {margin:.2g} apart"
    if margin <= 2 * allowed:
        return context.verdict("decode", "excused", f"{text}, a tie within the noise", detail)
    return context.verdict("decode", "diverged", text, detail, key=("decode", "token"))
