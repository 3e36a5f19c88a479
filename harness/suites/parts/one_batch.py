"""Diagnosis of differences that show in several batches but not in a single batch. The cause may be
the inputs of later batches, the sizes of batches, or state from earlier calls."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep.engine.batch import Batch, join_batches
from lockstep.harness.asking.facts import what_it_keeps
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Answered, Evaluation, Request, Verdict
from lockstep.harness.suites.parts.which_tokens import part, rounding, wrong_rows

KEPT = "and so do other tokens in these batches: look at state kept from earlier calls"
EXPERTS = ", or at experts that only a few of these tokens choose"  # an expert has few rows too


def with_one_batch(
    context: Context,
    batches: Sequence[Batch],
    verdict: Verdict,
    expected: Evaluation,
    actual: Evaluation,
    *,
    usual: bool = False,
) -> Verdict:
    """Add a note to a wrong run if the same tokens agree in one batch. usual: True if the usual run
    has the same batches and agrees, so that state from earlier calls is the likely cause."""
    if verdict.detail.get("at_fault") != "subject" or len(batches) < 2 or context.given:
        return verdict
    if any(batch.encoder or batch.seq_ids.any() for batch in batches):
        return verdict
    context.progress("the subject's logits in one batch")
    request = Request(batches=(join_batches(batches),))
    outcome = context.subject.ask("evaluate", request)
    if not isinstance(outcome, Answered) or part(
        context, np.concatenate(expected.logits), outcome.value
    ):
        return verdict
    by_size: bool | None = False
    if usual:
        n_experts = context.file.metadata.get(f"{context.facts.architecture}.expert_count")
        text = KEPT + EXPERTS * bool(n_experts and n_experts.data)
    else:
        text, by_size = by_size_or_place(
            context, batches, first_wrong(context, batches, expected, actual)
        )
    detail = {**verdict.detail, "in_one_batch": "agreed", "by_size": by_size}
    text = f"{verdict.summary}; the same tokens in one batch agree, {text}"
    return replace(verdict, summary=text, detail=detail)


def by_size_or_place(
    context: Context, batches: Sequence[Batch], wrong: int
) -> tuple[str, bool | None]:
    """Describe what to look at in a wrong batch. Also return True if the batch's size is the cause,
    False if it is not, and None if this is unknown. wrong: the number of the first wrong batch."""
    n, first = len(batches[wrong]), len(batches[0])
    size = "the kernels for this many rows" if n > 1 else "the kernels for a single row"
    place = f"the inputs of a batch after the first {first} tokens: {what_it_keeps(context.file)}"
    if not wrong:
        return f"so look at a batch of {n} tokens: {size}", True
    whole = join_batches(batches)
    alone = Batch.of(whole.tokens[:n].tolist())
    request = Request(batches=(alone,))
    outcomes = context.oracle.ask("evaluate", request), context.subject.ask("evaluate", request)
    oracle, subject = (o.value if isinstance(o, Answered) else None for o in outcomes)
    if oracle is None or subject is None:
        return f"so look at {place}, or at {size}", None
    if part(context, np.concatenate(oracle.logits), subject):
        return f"and a first batch of size {n} differs: look at {size}", True
    return f"so look at {place}", False


def first_wrong(
    context: Context, batches: Sequence[Batch], expected: Evaluation, actual: Evaluation
) -> int:
    """Return the number of the first batch with a wrong logit."""
    truth, got = np.concatenate(expected.logits), np.concatenate(actual.logits)
    allowed = whole_run(context.noise.relative, largest(truth)).allowed
    rows = wrong_rows(context, batches, truth, got, allowed + rounding(context, actual))
    ends = np.cumsum([len(rows) for rows in expected.logits])
    return int(ends.searchsorted(rows[0], "right")) if rows else 0
