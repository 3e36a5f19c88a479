"""The values of a run that an engine shows: its outputs, and nodes by llama.cpp's names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.golden.honest import EMBEDDINGS, Matrices, matrix_of, record_graph
from lockstep.golden.suites.base import AskedEngine
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.graph.aliases import other_names
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.wiring import site_of, wires_of
from lockstep.harness.records import Evaluation, Request, Site


def ask_outputs(ask: AskedEngine, result: str, batches: Sequence[Batch]) -> tuple[F32, ...]:
    """Return the logits or embeddings of each batch. Raises NoAnswer."""
    if result == EMBEDDINGS:
        embeddings: tuple[F32, ...] = ask("embed", tuple(batches))
        return embeddings
    run: Evaluation = ask("evaluate", Request(batches=tuple(batches)))
    return run.logits


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A wanted node. also: the node's names in traces; asked: True if the user asked for the
    node."""

    name: str
    also: tuple[str, ...]
    rows: int
    asked: bool

    @staticmethod
    def of(row: Mapping[str, Any]) -> "Wanted":
        """Build a wanted node from a row of `shown` in the document of a run."""
        also, asked = tuple(row.get("also", ())), row.get("asked", True)
        return Wanted(name=row["name"], also=also, rows=row["rows"], asked=asked)


def nodes_of(
    session: Session, batches: Sequence[Batch], result: str, wanted: Sequence[Wanted]
) -> Matrices:
    """Return the wanted nodes that the engine has, from its graph or else from a trace.

    Raises NoAnswer if the engine shows neither a graph nor a trace.
    """
    try:
        return record_graph(session, batches, result, [node.name for node in wanted]).shown
    except NoAnswer as error:
        if error.status != "not-compared":
            raise
    ask = AskedEngine(engine=session.name, session=session)
    of_embeddings = result == EMBEDDINGS
    request = Request(batches=tuple(batches), capture=True, embeddings=of_embeddings)
    answer: Evaluation = ask("evaluate", request)
    if answer.trace is None:
        raise NoAnswer("not-compared", f"{session.name} shows no tensors", {})
    values = answer.trace.values()
    found = {node.name: matrix_in(values, batches, node) for node in wanted}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def matrix_in(
    values: Mapping[Site, NDArray[Any]], batches: Sequence[Batch], node: Wanted
) -> F32 | None:
    """Return the node's rows of all batches, or None if the node is missing in a batch.

    Encoder batches may lack the node, because they have other nodes.
    """
    for name in (node.name, *node.also):
        found = [values.get(site_of(name, step)) for step in range(len(batches))]
        missing = [batch for batch, value in zip(batches, found, strict=True) if value is None]
        if all(batch.encoder for batch in missing):
            matrix = matrix_of(name, [value for value in found if value is not None])
            if len(matrix) == node.rows or not missing:
                return matrix
    return None


def names_in_traces(program: Program) -> dict[str, list[str]]:
    """Map each node's name to its names in harness.sites, such as `Qcur_rope-0`."""
    wires = wires_of(program)
    found: dict[str, list[str]] = {}
    for graph in program.graphs:
        for node in graph.nodes:
            place = graph.place(node)
            for name, layer in other_names(node, wires[place]):
                text = name if layer is None else f"{name}-{layer}"
                if text != program.names[place]:
                    found[program.names[place]] = [text]
    return found
