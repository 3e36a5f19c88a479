"""Do both engines give the same logits at every position of a prompt?"""

from collections.abc import Iterator, Sequence

import numpy as np

from engine.batch import Batch
from engine.ops.reference import Reference
from engine.quants.base import F32
from harness.compare import largest, mismatch_between, worst_distance
from harness.records import Evaluation, Request, Verdict
from harness.suites.base import Context, Suite
from harness.tolerances import Bound, whole_run


class Logits(Suite, name="logits"):
    order = 40

    def run(self, context: Context) -> Iterator[Verdict]:
        request = Request(batches=context.batches)
        context.progress("logits of both engines")
        expected: Evaluation = context.ask(context.oracle, "evaluate", request)
        actual: Evaluation = context.ask(context.subject, "evaluate", request)
        yield compared(context, "logits", context.batches, expected, actual)


def compared(
    context: Context,
    suite: str,
    batches: Sequence[Batch],
    oracle: Evaluation,
    subject: Evaluation,
) -> Verdict:
    """Every logit of every output of the batches, (tokens, vocabulary) in all."""
    expected, got = np.concatenate(oracle.logits), np.concatenate(subject.logits)
    size = largest(expected)
    bound = whole_run(context.noise.relative, size)
    mismatch = mismatch_between(expected, got, bound.allowed)
    if mismatch is not None and mismatch.kind == "value":
        bound = whole_run(context.noise_on(batches), size)
        mismatch = mismatch_between(expected, got, bound.allowed)
    relative = worst_distance(expected, got) / (size or 1.0)
    detail = {
        "worst_relative_to_largest_logit": relative,
        "allowed_relative": float(bound.allowed) / (size or 1.0),
        "largest_logit": size,
        "reason": bound.reason,
        "tokens": len(expected),
    }
    if mismatch is None:
        text = f"{len(expected)} positions: worst {relative:.1e} of the largest logit"
        return context.verdict(
            suite, "agreed", f"{text} (allowed {detail['allowed_relative']:.1e})", detail
        )
    if is_plain(context, batches, got, bound):
        text = "agrees with products of unconverted activations, which llama.cpp does not make"
        return context.verdict(suite, "agreed", text, detail)
    detail |= {
        "index": list(mismatch.index),
        "expected": mismatch.expected,
        "actual": mismatch.actual,
        "mismatched": mismatch.mismatched,
        "total": mismatch.total,
        "kind": mismatch.kind,
    }
    where = f"position {mismatch.index[0]}, token {mismatch.index[1]}" if mismatch.index else ""
    return context.verdict(
        suite,
        "diverged",
        f"{mismatch.mismatched} of {mismatch.total} logits differ; worst at {where}: "
        f"{mismatch.actual:.9g}, expected {mismatch.expected:.9g}"
        if mismatch.kind == "value"
        else mismatch.detail or mismatch.kind,
        detail,
        key=(suite, mismatch.kind),
    )


def is_plain(context: Context, batches: Sequence[Batch], got: F32, bound: Bound) -> bool:
    """Is it the float64 run's peer? An engine need not convert activations as llama.cpp does."""
    model = context.reading
    model.ops, cache = Reference(), model.new_cache()
    plain = np.concatenate([part for b in batches for part in model.decode(b, cache)])
    return mismatch_between(plain, got, bound.allowed) is None
