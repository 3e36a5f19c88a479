"""Comparison of both engines' embeddings, which must be the same. Embeddings are the result of a
model without logits, and of a model whose metadata names a pooling."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.further_runs import PROMPT, many_ids, n_cells
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.records import Evaluation, Unanswerable, Verdict
from lockstep.harness.suites.logits import left_out
from lockstep.harness.suites.parts.whole_runs import compare_runs

NORMALISED = "normalised"  # key in `detail`: each row is the oracle's row divided by its norm


class Embeddings(Suite, name="embeddings"):
    order = 45
    expected = False  # False: models with logits have no embeddings to compare

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        own = context.for_embeddings()
        try:
            own.progress("embeddings of both engines")
            # the oracle is asked first, because it knows if the model has embeddings
            oracle = own.oracle.ask("embed", own.batches)
            if isinstance(oracle, Unanswerable) and oracle.of_model:
                if not context.named:
                    return  # a model with logits need not have embeddings
                raise NoAnswer("not-applicable", oracle.message, {})
            expected, actual = map(as_run, own.ask_both("embed", own.batches))
            truth = np.concatenate(own.noise.logits)
            found = compare_runs(
                own, "embeddings", own.batches, expected, actual, truth, what="embedding"
            )
            yield with_length(found, expected, actual)
            if not own.subject_info.partial:
                yield from further(own)
        finally:
            own.close()


def further_run(own: Context) -> Run:
    """Return a run with an odd number of tokens, then two more sequences in one batch."""
    ids = many_ids(own, min(PROMPT, n_cells(own)))
    # with another first token, because some models use only that token's row
    beside = Batch.of([*ids[-5:], *ids[-4:-1]])
    beside.seq_ids[:], beside.positions[:] = [1] * 5 + [2] * 3, [*range(5), *range(3)]
    words = f"of {len(ids)} tokens, then of two sequences in one batch"
    return Run(words=words, batches=(Batch.of(ids), beside))


def further(own: Context) -> Iterator[Verdict]:
    run = further_run(own)
    words, batches = run.words, run.batches
    own.progress("embeddings of more tokens, and of two sequences at once")
    outcomes = [(s, s.ask("embed", batches)) for s in (own.oracle, own.subject)]
    if lacking := left_out(run, *(outcome for _, outcome in outcomes)):
        yield lacking.verdict(own, "embeddings")
        return
    expected, actual = (as_run(own.answer(s, "embed", o)) for s, o in outcomes)
    truth = np.concatenate(own.honest.floor(batches, seed=own.seed, runs=0).logits)
    found = compare_runs(own, "embeddings", batches, expected, actual, truth, what="embedding")
    found = with_length(found, expected, actual)
    detail = {**found.detail, "asked": words}
    yield replace(found, summary=f"{words}: {found.summary}", detail=detail)


def with_length(verdict: Verdict, expected: Evaluation, actual: Evaluation) -> Verdict:
    """Add a note if all rows equal the oracle's rows divided by their norms, because many engines
    normalise embeddings.

    If each number may be off by e, the whole row may be off by e * sqrt(width). As a share of the
    row's length, the normalised row may be off by twice this amount, because both the row and its
    length may be off by it.
    """
    if verdict.status != "diverged" or verdict.detail.get("kind") != "value":
        return verdict
    truth, got = np.concatenate(expected.logits), np.concatenate(actual.logits)
    lengths = np.linalg.norm(truth.astype(np.float64), axis=-1, keepdims=True)
    off = verdict.detail["allowed_relative"] * verdict.detail["largest_logit"]
    if not lengths.all() or truth.shape[-1] < 2:
        return verdict
    allowed = 2 * np.sqrt(truth.shape[-1]) * off / lengths
    if (np.abs(got - truth / lengths) > allowed).any():
        return verdict
    text = (
        "each row is the oracle's divided by its norm: return pooled embeddings without "
        "normalization"
    )
    detail = {**verdict.detail, NORMALISED: True}
    return replace(verdict, summary=f"{verdict.summary}; {text}", detail=detail)


def as_run(rows: tuple[F32, ...]) -> Evaluation:
    return Evaluation(logits=rows, trace=None)
