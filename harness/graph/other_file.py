"""Differences between llama.cpp's graphs of two files: in parameters, nodes, and inputs.

Names identify the nodes and inputs. A key of a file may be a parameter of an op (the rope's base),
may change the nodes, or may decide the content of an input (a window changes a mask). No weight
shows such a difference.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.graph.program import (
    Graph,
    Place,
    PlannedNode,
    Program,
    Root,
    TensorView,
)

Parameters: TypeAlias = Mapping[Place, NDArray[np.int32]]
Name: TypeAlias = tuple[int, int, str]  # step, ubatch, the node's own name
Source: TypeAlias = tuple[str, tuple[int, ...]]  # the writer, and the place in its result


def other_parameters(oracle: Program, subject: Program) -> Parameters:
    """Return the subject's parameters for each of the oracle's nodes whose parameters differ, by
    place."""
    theirs, found = by_name(subject), {}
    for name, (place, node) in by_name(oracle).items():
        other = theirs[name][1] if name in theirs else None
        if other is not None and same_form(node, other) and node.params != other.params:
            found[place] = np.frombuffer(other.params, np.int32)
    return found


def first_other_node(oracle: Program, subject: Program) -> str:
    """Describe the first node that only one graph has, or that differs in op, size or inputs.
    Return "" if there is none.

    An example is a node that reads the mask of other layers.
    """
    ours, theirs = by_name(oracle), by_name(subject)
    ours_read, theirs_read = reads(oracle), reads(subject)
    for name, (_, node) in ours.items():
        if name not in theirs:
            return f"the graph lacks {name[2]!r} ({node.op})"
        if not same_form(node, theirs[name][1]):
            return f"{name[2]!r} is {form(theirs[name][1])}, expected {form(node)}"
        for expected, actual in zip_longest(ours_read[name], theirs_read[name]):
            if expected != actual:
                return f"{name[2]!r} reads {in_words(actual)}, expected {in_words(expected)}"
    more = next((name for name in theirs if name not in ours), None)
    return f"the oracle's graph lacks {more[2]!r} ({theirs[more][1].op})" if more else ""


def first_other_input(oracle: Program, subject: Program) -> str:
    """Describe the first input that the two graphs fill differently; "" if there is none.

    Such a difference would not show if every op ran on the oracle's inputs.
    """
    for ours, theirs in zip(oracle.graphs, subject.graphs, strict=False):
        known = inputs_by_name(theirs)
        for name, raw in inputs_by_name(ours).items():
            if name in known and not np.array_equal(raw, known[name]):
                return f"its input {name[0]!r} contains other numbers"
    return ""


def reads(program: Program) -> dict[Name, tuple[Source, ...]]:
    """Return the sources of each node. A source is the name of the node or memory that is read,
    with its layout."""
    found: dict[Name, tuple[Source, ...]] = {}
    for graph in program.graphs:
        held = [f"{root.name}#{n}" if n else root.name for root, n in numbered_roots(graph)]
        for node in graph.nodes:
            own = program.names[graph.place(node)]
            found[graph.step, graph.ubatch, own] = tuple(
                source_in(graph, view, held) for view in node.sources
            )
            if node.result.root >= 0:
                held[node.result.root] = own
    return found


def numbered_roots(graph: Graph) -> Iterator[tuple[Root, int]]:
    """Yield each root with the number of earlier roots that have the same name."""
    seen: Counter[str] = Counter()
    for root in graph.roots:
        yield root, seen[root.name]
        seen[root.name] += 1


def source_in(graph: Graph, view: TensorView | None, held: Sequence[str]) -> Source:
    """Return the name and the layout of a view's source. A weight has no layout, because the files
    may store it in different types."""
    if view is None:
        return "nothing", ()
    name = held[view.root] if view.root >= 0 else view.name
    is_weight = view.root >= 0 and graph.roots[view.root].kind == "weight"
    return name, () if is_weight else (*view.ne, *view.nb, view.offset)


def in_words(source: Source | None) -> str:
    name, at = source or ("nothing", ())
    return f"{name!r}" + (f" {list(at[:4])} at byte {at[-1]}" if at else "")


def inputs_by_name(graph: Graph) -> dict[tuple[str, int], NDArray[np.uint8]]:
    """Return the inputs by name and number, because two masks may have the same name."""
    rows = enumerate(numbered_roots(graph))
    return {(r.name, n): graph.inputs[at] for at, (r, n) in rows if at in graph.inputs}


def by_name(program: Program) -> dict[Name, tuple[Place, PlannedNode]]:
    def places(graph: Graph) -> list[tuple[Place, PlannedNode]]:
        return [(graph.place(node), node) for node in graph.nodes]

    found = (each for graph in program.graphs for each in places(graph))
    return {(place[0], place[1], program.names[place]): (place, node) for place, node in found}


def same_form(a: PlannedNode, b: PlannedNode) -> bool:
    return (a.op, a.result.type, a.result.ne) == (b.op, b.result.type, b.result.ne)


def form(node: PlannedNode) -> str:
    return f"{node.op} of {node.result.type} {list(node.result.ne)} (ne0 first)"


def parameters_in_words(expected: NDArray[np.int32], actual: NDArray[np.int32]) -> str:
    """Describe the parameters that differ. ggml has sixteen for each op, and does not say which are
    floats."""
    found = [
        f"number {i} is {number(actual[i])}, expected {number(expected[i])}"
        for i in np.flatnonzero(expected != actual)
    ]
    return "its parameters come from the subject's file: " + "; ".join(found)


def number(word: np.int32) -> str:
    """Return a parameter as text. Small values are integers: as floats they would be below
    1e-37."""
    small = abs(int(word)) < 1 << 23
    return str(int(word)) if small else f"{float(word.view(np.float32)):.9g}"
