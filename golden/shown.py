"""What an engine shows of a run: what it comes to, and nodes by llama.cpp's names."""

from collections.abc import Sequence

from engine.batch import Batch
from engine.quants.base import F32
from golden.honest import EMBEDDINGS, Matrices, matrix_of, recorded
from golden.suites.base import Asked
from harness.graph.wiring import site_of
from harness.records import Evaluation, Request
from harness.runner import Session
from harness.suites.base import NoAnswer


def answered(ask: Asked, result: str, batches: Sequence[Batch]) -> tuple[F32, ...]:
    """Of each batch its logits or embeddings. Raises NoAnswer."""
    if result == EMBEDDINGS:
        embeddings: tuple[F32, ...] = ask("embed", tuple(batches))
        return embeddings
    run: Evaluation = ask("evaluate", Request(batches=tuple(batches)))
    return run.logits


def nodes_of(
    session: Session, batches: Sequence[Batch], result: str, names: Sequence[str]
) -> Matrices:
    """Those that the engine has: from its graph, or else from a trace of all its tensors.

    Raises NoAnswer if it shows neither.
    """
    try:
        return recorded(session, batches, result, names).shown
    except NoAnswer as error:
        if error.status != "not-compared":
            raise
    ask = Asked(engine=session.name, session=session)
    answer: Evaluation = ask("evaluate", Request(batches=tuple(batches), capture=True))
    if answer.trace is None:
        raise NoAnswer("not-compared", f"{session.name} shows no tensors", {})
    values = answer.trace.values()
    found = {}
    for name in names:
        sites = [site_of(name, step) for step in range(len(batches))]
        if all(site in values for site in sites):
            found[name] = matrix_of(name, [values[site] for site in sites])
    return found
