"""Our own runs of a model, from which goldens are made: llama.cpp's graph with our ops.

The runs give the same bits on every CPU: they use neither BLAS nor the C library, and do not depend
on the vector width of the oracle's build. So the stored values are ours. The oracle, and our own
graph if there is one, are compared with them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.sums import in_order
from lockstep.engine.quants.base import F32
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import NoAnswer, no_answer
from lockstep.harness.graph.floor import whole
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.ways import Honest, Noisy, Wide
from lockstep.harness.records import Settings

# number of lanes of the widest vectors, which round least, so that no CPU has a wider limit
LANES = 16
LOGITS, EMBEDDINGS = "logits", "embeddings"  # kinds of results; any other shown value is a node
Matrices = dict[str, F32]  # by name: (rows, width) of all batches


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """llama.cpp's graphs of some batches, and the values at the requested nodes."""

    program: Program
    result: str  # kind of the result: LOGITS, or EMBEDDINGS for a model without logits
    names: tuple[str, ...]  # names of nodes
    shown: Matrices

    @cached_property
    def places(self) -> dict[Place, str]:
        """Return the named nodes by place. For an unknown name, raises Unsupported, which suggests
        the nearest names."""
        return {place: name for name in self.names for place in self.program.places_of(name)}


@dataclass(kw_only=True)
class SeenValues:
    """Values of nodes, in order of arrival."""

    values: dict[str, dict[Place, NDArray[Any]]] = field(default_factory=dict)

    def add(self, name: str, place: Place, value: NDArray[Any]) -> None:
        self.values.setdefault(name, {})[place] = value.copy()

    def matrices(self) -> Matrices:
        return {name: matrix_of(name, found.values()) for name, found in self.values.items()}


def record_graph(
    session: Session, batches: Sequence[Batch], result: str, names: Sequence[str] = ()
) -> Recorded:
    """Record a run's graph and the named values.

    Raises NoAnswer if the engine does not show its graph, Unsupported for an unknown name.
    """
    values: dict[Place, NDArray[Any]] = {}

    def watch(node: Node, place: Place) -> None:
        # only at the end it is known which names are unique
        if any(name == node.name or name.startswith(f"{node.name} ") for name in names):
            values[place] = node.value.copy()

    program = record(session, batches, watch=watch, embeddings=result == EMBEDDINGS)
    if not isinstance(program, Program):
        raise no_answer(session.name, "capture", program)
    if not program.has_result:
        raise NoAnswer("not-applicable", f"the model has no {result}", {})
    found = Recorded(program=program, result=result, names=tuple(names), shown={})
    seen = SeenValues()
    for place, name in found.places.items():
        seen.add(name, place, values[place])
    return replace(found, shown=seen.matrices())


def run(
    found: Recorded, file: GgufFile, settings: Settings, way: Honest, *, plain: bool = False
) -> Matrices:
    """Run the recorded graph; return the result and the named nodes. Raises Unsupported for a node
    without a formula."""
    build = Build(
        lanes=LANES, n_threads=settings.n_threads, plain=plain, multiply=in_order, zeros=True
    )
    seen = SeenValues()

    def see(graph: Graph, node: PlannedNode, value: NDArray[Any]) -> None:
        place = graph.place(node)
        if place in found.places:
            seen.add(found.places[place], place, value)

    outputs = whole(replay(found.program, file, build, way, trace=see))
    every = {found.result: np.concatenate(outputs), **seen.matrices()}
    return {name: matrix.astype(np.float32) for name, matrix in every.items()}


def as_ggml(found: Recorded, file: GgufFile, settings: Settings) -> Matrices:
    """Compute values with llama.cpp's deliberate roundings and conversions of activations."""
    return run(found, file, settings, Honest())


def as_plain(found: Recorded, file: GgufFile, settings: Settings) -> Matrices:
    """Compute values in float64, without converting activations."""
    return run(found, file, settings, Wide(), plain=True)


def unlucky(found: Recorded, file: GgufFile, settings: Settings, seed: int) -> Matrices:
    """Compute as ggml does, but add to every op an error that is a random share of its bound."""
    return run(found, file, settings, Noisy(seed=seed))


def matrix_of(name: str, values: Iterable[NDArray[Any]]) -> F32:
    """Return the values of all batches as one matrix: (all leading dimensions, the last
    dimension)."""
    parts = [value.reshape(-1, value.shape[-1]) for value in values]
    kinds = {part.dtype.name for part in parts}
    if not kinds <= {"float32", "float64"}:
        raise Unsupported(f"the values of {name} are {min(kinds)}: only float32 can be kept")
    if len({part.shape[1] for part in parts}) > 1:
        raise Unsupported(f"the width of {name} changes from batch to batch: it cannot be kept")
    return np.concatenate(parts)
