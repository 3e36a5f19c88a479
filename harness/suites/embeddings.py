"""Do both engines give the same embeddings? They are what a model without logits comes to, and
what the metadata of others asks for by naming a way to pool."""

from collections.abc import Iterator

import numpy as np

from engine.quants.base import F32
from harness.facts import ModelFacts
from harness.records import Evaluation, Unanswerable, Verdict
from harness.suites.base import Context, NoAnswer, Suite
from harness.suites.logits import compared


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
        finally:
            own.close()


def as_run(rows: tuple[F32, ...]) -> Evaluation:
    return Evaluation(logits=rows, trace=None)
