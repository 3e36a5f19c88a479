"""Descriptions of wrong logits: their tokens and batches."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch, join_batches
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest, mismatch_between
from lockstep.harness.judging.stored import half_step
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Evaluation, Mismatch
from lockstep.harness.report.text import fault_of

RESULTS = ("result_output", "result_embd_pooled")
NOTHING = np.zeros(())


def part(context: Context, expected: F32, subject: Evaluation) -> bool:
    allowed = whole_run(context.noise.relative, largest(expected)).allowed
    got = np.concatenate(subject.logits)
    return mismatch_between(expected, got, allowed + rounding(context, subject)) is not None


def rows_that_differ(expected: F32, got: F32, limit: NDArray[np.float64]) -> Sequence[int]:
    if expected.shape != got.shape:
        return ()
    limits = np.broadcast_to(limit, expected.shape)
    rows = enumerate(zip(expected, got, limits, strict=True))
    return [i for i, row in rows if mismatch_between(*row) is not None]


def wrong_rows(
    context: Context,
    batches: Sequence[Batch],
    expected: F32,
    got: F32,
    limit: NDArray[np.float64],
) -> Sequence[int]:
    """Return the numbers of the subject's wrong rows. An honest engine that rounds differently
    differs from llama.cpp in right rows too. So return the rows that differ from llama.cpp's run,
    or from an honest run if fewer rows differ from that run."""
    found = (rows_that_differ(run, got, limit) for run in context.honest_runs(batches))
    return min((rows_that_differ(expected, got, limit), *filter(None, found)), key=len)


def ids_that_differ(expected: F32, got: F32, limit: NDArray[np.float64]) -> str:
    """Describe the range of token ids whose logits are wrong, if the logits of all other ids are
    right. Such a range shows a wrong offset in the head, or rows that no thread computed."""
    if expected.shape != got.shape:
        return ""
    wrong = np.zeros(expected.shape[-1], bool)
    for want, have, most in zip(
        expected, got, np.broadcast_to(limit, expected.shape), strict=True
    ):  # one row at a time, because rows of a large vocabulary take gigabytes
        with np.errstate(invalid="ignore"):
            close = np.abs(have.astype(np.float64) - want) <= most
        wrong |= ~(close | (have == want) | (np.isnan(have) & np.isnan(want)))
    ids = np.flatnonzero(wrong)
    if not len(ids) or len(ids) == len(wrong) or ids[-1] - ids[0] + 1 != len(ids):
        return ""
    if len(ids) == 1:
        return f"; only the logit of token id {ids[0]}"
    return f"; only logits of token ids {ids[0]} to {ids[-1]}"


def tokens_that_differ(batches: Sequence[Batch], rows: Sequence[int], all_rows: int) -> str:
    """Describe the tokens with wrong logits, if other tokens are right. They may begin at the end
    of a chunk or a window, or in a later batch.

    all_rows: the number of rows, which for pooled embeddings is one for each sequence of a batch.
    """
    n = sum(int(batch.outputs.sum()) for batch in batches)
    if not rows or len(rows) == all_rows:
        return ""
    if all_rows != n:
        rest = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        return f"; only sequence number {rows[0]}{rest}, {len(rows)} of {all_rows}"
    asked = np.flatnonzero(np.concatenate([batch.outputs for batch in batches]))
    first, last = int(asked[rows[0]]), int(asked[rows[-1]])
    numbers = f"number {first}" if first == last else f"numbers {first} to {last}"
    starts = np.cumsum([0, *(len(batch) for batch in batches)])
    among = sorted({int(starts.searchsorted(asked[row], "right")) - 1 for row in rows})
    text = f"; only {len(rows)} of {n} tokens, {numbers}"
    if len(batches) > 1 and among[0] == among[-1]:
        text += f", all of batch {among[0]}"
    elif among and among[0]:
        text += f", none before batch {among[0]}"
    return text


def rounding(context: Context, run: Evaluation) -> NDArray[np.float64]:
    """Return the rounding error of each of the subject's logits, in the type in which the subject
    stores them."""
    kinds = {site.step: k for site, k in context.subject.stored.items() if site.name in RESULTS}
    steps = (half_step(rows, kinds.get(i, "F32")) for i, rows in enumerate(run.logits))
    return np.concatenate(list(steps)) if kinds else NOTHING


def place_of(batches: Sequence[Batch], off: Mismatch, all_rows: int) -> str:
    """Return the position of the worst row's token. A row number is not a position if some tokens
    have no outputs, or if there are several sequences. all_rows: as in `tokens_that_differ`."""
    if off.kind != "value":
        return ""
    row, whole = off.index[0], join_batches(batches)
    asked = np.flatnonzero(whole.outputs)
    if len(asked) != all_rows:
        return f"row {row}"
    of_sequence = f" of sequence {whole.seq_ids[asked[row]]}" * bool(whole.seq_ids.any())
    return f"position {whole.positions[asked[row]]}{of_sequence}"


def sentence(off: Mismatch, at_fault: str, what: str, place: str) -> str:
    if off.kind != "value":
        return f"{off.detail or off.kind}; {fault_of(at_fault)}"
    column = f"token {off.index[1]}" if what == "logit" else f"element {off.index[1]}"
    return (
        f"{off.mismatched} of {off.total} {what}s differ; worst at {place}, {column}: "
        f"{off.actual:.9g}, expected {off.expected:.9g}; {fault_of(at_fault)}"
    )
