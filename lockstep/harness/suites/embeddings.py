"""Do both engines give the same embeddings? They are what a model without logits comes to, and
what the metadata of others asks for by naming a way to pool."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.further_runs import PROMPT, FurtherRun, many_ids, n_cells
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.records import Evaluation, Unanswerable, Verdict
from lockstep.harness.suites.logits import compared, left_out


class Embeddings(Suite, name="embeddings"):
    order = 45
    expected = False  # of what has logits

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        own = context.for_embeddings()
        try:
            own.progress("embeddings of both engines")
            oracle = own.oracle.ask("embed", own.batches)  # first: it knows whether there are any
            if isinstance(oracle, Unanswerable) and oracle.of_model:
                if not context.named:
                    return  # what has logits is missed by nobody
                raise NoAnswer("not-applicable", oracle.message, {})
            expected, actual = map(as_run, own.ask_both("embed", own.batches))
            truth = np.concatenate(own.noise.logits)
            yield compared(
                own, "embeddings", own.batches, expected, actual, truth, what="embedding"
            )
            if not own.subject_info.partial:
                yield from further(own)
        finally:
            own.close()


def further_run(own: Context) -> FurtherRun:
    """Of an odd number of tokens, and of two more sequences in one batch."""
    ids = many_ids(own, min(PROMPT, n_cells(own)))
    beside = Batch.of([*ids[:5], *ids[:3]])
    beside.seq_ids[:], beside.positions[:] = [1] * 5 + [2] * 3, [*range(5), *range(3)]
    words = f"of {len(ids)} tokens, then of two sequences in one batch"
    return FurtherRun(words=words, batches=(Batch.of(ids), beside))


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
    found = compared(own, "embeddings", batches, expected, actual, truth, what="embedding")
    detail = {**found.detail, "asked": words}
    yield replace(found, summary=f"{words}: {found.summary}", detail=detail)


def as_run(rows: tuple[F32, ...]) -> Evaluation:
    return Evaluation(logits=rows, trace=None)
