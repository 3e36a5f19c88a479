"""Finds tensors that an engine shows under the name of the wrong node.

Examples are embeddings that are already scaled, and queries shown after their rotation instead of
before. The engine is right and the name is wrong, so the ops that read this tensor look wrong too.
The result changes only the words of the report. The tensor still counts as wrong under the name
that the engine gave.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.harness.context.suite import Context
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.shown import part_shown
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.locate.nodes import run_through
from lockstep.harness.locate.other_formulas import OtherFormulas
from lockstep.harness.records import Site

# number of nodes of llama.cpp's graph, from a product to the result of its norm and rotation
NEAR = 6
MOST_AXES = 4
# share of the distance from the tensor that has the name; inputs may be slightly off
MUCH_NEARER = 2.0**-4


def with_other_name(
    context: Context,
    program: Program,
    places: Mapping[Site, Place],
    shown: Mapping[Place, NDArray[Any]],
    found: Sequence[SiteFinding],
) -> tuple[SiteFinding, ...]:
    """Return the findings, with a note on the first wrong one. Later wrong findings get no note,
    because their inputs are wrong."""
    first = next((f for f in found if f.mismatch is not None), None)
    if first is None or places.get(first.site) not in shown:
        return tuple(found)
    place = places[first.site]
    near = near_nodes(program, place)
    values: dict[Place, NDArray[Any]] = {}
    formulas = OtherFormulas(context.file, near, place, shown[place])

    def look(node: Node) -> None:
        formulas.look(node)
        part = part_shown(node.value, shown[place].shape, node.name) if node.place in near else None
        if part is not None and part.dtype.kind == "f":
            values[node.place] = part.copy()

    run_through(context, look)
    names = {place: str(site) for site, place in reversed(list(places.items()))}
    text = other_name(shown[place], place, values, names) or formulas.text
    return tuple(replace(f, parameters=text) if text and f is first else f for f in found)


def other_axes(shown: NDArray[Any], value: NDArray[Any]) -> str:
    """Describe the order of axes that makes the tensor equal to the node's; "" if no order does.
    The shape alone is not enough, because there may be as many tokens as heads."""
    here, size = worst_distance(value, shown), largest(value) or 1.0
    _, *orders = permutations(range(shown.ndim)) if shown.ndim <= MOST_AXES else ((),)
    for order in orders:
        turned = np.ascontiguousarray(np.transpose(shown, order)).reshape(value.shape)
        off = worst_distance(value, turned)
        if off < here * MUCH_NEARER:
            return (
                f"the engine shows this tensor in another order of axes: with {[*order]} "
                f"of {shown.shape} it is off by {off / size:.1e} of the largest value"
            )
    return ""


def near_nodes(program: Program, place: Place) -> set[Place]:
    """Return the nodes near this place in the same decode."""
    for graph in program.graphs:
        every = [graph.place(node) for node in graph.nodes]
        if place in every:
            at = every.index(place)
            return {*every[max(0, at - NEAR) : at + NEAR + 1]}
    return set()


def other_name(
    shown: NDArray[Any],
    place: Place,
    values: Mapping[Place, NDArray[Any]],
    names: Mapping[Place, str],
) -> str:
    """Describe the other node whose values the engine shows, or the other order of axes; "" if
    neither explains the values. `values` are llama.cpp's values, in the shown shape."""
    if place not in values or shown.dtype.kind != "f" or not np.isfinite(shown).all():
        return ""
    if not shown.size or (shown == shown.flat[0]).all():
        return ""  # zeros, or shares of a single expert, fit every tensor equally well
    if text := other_axes(shown, values[place]):
        return text
    off = {p: worst_distance(v, shown) / (largest(v) or 1.0) for p, v in values.items()}
    here = off.pop(place)
    named = [p for p in off if p in names and off[p] <= here * MUCH_NEARER]
    if not named:
        return ""
    best = min(named, key=lambda p: off[p])
    return (
        f"the engine shows llama.cpp's {names[best]} (error: {off[best]:.1e} of its "
        "largest value): it has a different name, or the engine skips the ops between them"
    )
