"""Converts nodes of an engine from columns to values. The engine's data are untrusted."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.node import Node, Operand, layout
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.context.runner import Session
from lockstep.harness.records import ANY_KIND, Fault, Nodes, Outcome

LAYER = re.compile(r"-(\d+)(?: \(|$)|blk\.(\d+)\.|_l(\d+)\b")  # layer in llama.cpp's names
NODE = -1  # place of a node in the list of its sources


def capture(
    session: Session,
    consume: Callable[[Node], None],
    batches: Sequence[Batch],
    fault: Fault | None = None,
) -> Outcome:
    """Decode the batches, and pass every node that the engine computes to `consume`."""

    def each(piece: Nodes) -> None:
        for node in nodes_of(piece):
            consume(node)

    return session.stream("capture", each, tuple(batches), fault)


def nodes_of(piece: Nodes) -> Iterator[Node]:
    """Yield the nodes of a piece. Raises MalformedAnswer for a broken row."""
    for first, end in rows_of(piece):
        try:
            node = node_of(piece, first, end)
        except (EngineError, LookupError, TypeError, ValueError) as error:
            where = f"row {first} of {len(piece.place)}"
            raise MalformedAnswer(where, "a node", str(error)) from error
        yield node


def rows_of(piece: Nodes) -> Iterator[tuple[int, int]]:
    """Yield, for each node, the number of its own row and the number after its last source. Raises
    MalformedAnswer."""
    if len(piece.place) and piece.place[0] != NODE:
        raise MalformedAnswer("the first row", "a node", int(piece.place[0]))
    starts = [*np.flatnonzero(piece.place == NODE).tolist(), len(piece.place)]
    yield from pairwise(starts)


def node_of(piece: Nodes, first: int, end: int, *, values: bool = True) -> Node:
    """Return the node. `values` is True if its result must have a value; otherwise zeros replace a
    missing value.

    Raises ValueError if a required value is missing.
    """
    sources: list[Operand | None] = []
    for row in range(first + 1, end):
        sources += [None] * (int(piece.place[row]) - len(sources))
        sources.append(operand_of(piece, row))
    name = text(piece.name[first])
    value = value_of(piece, first)
    if value is None:
        if values:
            raise ValueError(f"the result of {name!r} is missing")
        dtype, shape, _ = layout(piece.types[piece.type[first]], tuple(piece.ne[first].tolist()))
        value = np.broadcast_to(np.zeros((), dtype), shape)
    return Node(
        step=int(piece.step[first]),
        ubatch=int(piece.ubatch[first]),
        index=int(piece.index[first]),
        op=op_of(piece, first),
        name=name,
        layer=layer_of((name, *(source.name for source in sources if source))),
        type=piece.types[piece.type[first]],
        ne=tuple(piece.ne[first].tolist()),
        params=piece.params[first],
        sources=tuple(sources),
        value=value,
    )


def op_of(piece: Nodes, row: int) -> str:
    number, first = int(piece.op[row]), int(piece.params[row, 0])
    if (number, first) in piece.ops:
        return piece.ops[number, first]
    return piece.ops[number, ANY_KIND]


def operand_of(piece: Nodes, row: int) -> Operand:
    return Operand(
        name=text(piece.name[row]),
        type=piece.types[piece.type[row]],
        ne=tuple(piece.ne[row].tolist()),
        value=value_of(piece, row),
        weight=text(piece.weight[row]),
        offset=int(piece.offset[row]),
        nb=tuple(piece.nb[row].tolist()),
        producer=int(piece.producer[row]),
    )


def value_of(piece: Nodes, row: int) -> NDArray[Any] | None:
    """Return a view of the piece's bytes. numpy refuses a view that reaches outside these bytes."""
    if piece.at[row] < 0:
        return None
    dtype, shape, _ = layout(piece.types[piece.type[row]], tuple(piece.ne[row].tolist()))
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, piece.data, int(piece.at[row]))


def text(name: NDArray[np.uint8]) -> str:
    return name.tobytes().partition(b"\0")[0].decode(errors="replace")


@lru_cache(maxsize=4096)
def layer_of(names: tuple[str, ...]) -> int | None:
    """Return the layer of a node: the first layer number in `names`, which are the node's own name
    and then the names of its sources."""
    for name in names:
        if found := LAYER.search(name):
            return int(next(filter(None, found.groups())))
    return None
