"""Other runs that must agree with a golden before it is written."""

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.golden.honest import LOGITS, Matrices, Recorded
from lockstep.golden.shown import ask_outputs
from lockstep.golden.suites.base import Source
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.judging.noise import run


def other_runs(
    source: Source, facts: ModelFacts, batches: Sequence[Batch], found: Recorded
) -> Iterator[tuple[str, Matrices]]:
    """Yield the oracle's runs, and those of our own graph if there is one.

    Our own graph is needed because a replay of llama.cpp's graph repeats the errors of that graph.
    """
    own = {found.result: np.concatenate(ask_outputs(source.ask, found.result, batches))}
    yield source.info.engine, {**own, **found.shown}
    if facts.not_ours or found.result != LOGITS:
        return
    assert source.path is not None
    s = source.settings
    source.progress("the same run of our own graph")
    model = Model(source.path, Mirror(s.n_threads, s.n_ctx), n_ctx=s.n_ctx, n_ubatch=s.n_ubatch)
    try:
        yield "our own graph", {LOGITS: np.concatenate(run(model, batches, model.ops))}
    finally:
        model.close()
