"""What an engine shows of an activation where it took another function than llama.cpp: GELU by erf,
as many a model is published with, or the two factors of a gate exchanged. Words alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.node import Node
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.ggml.base import expect
from lockstep.harness.judging.compare import largest, worst_distance

# names of ggml's, and how a formula is called in papers; of one input, and of two
FUNCTIONS = {
    "GELU": "GELU by tanh",
    "GELU_ERF": "GELU by erf",
    "GELU_QUICK": "GELU by a sigmoid",
    "SILU": "SiLU",
    "RELU": "ReLU",
    "SIGMOID": "the sigmoid alone",
}
GATES = {
    "GEGLU": "a gate by tanh GELU",
    "GEGLU_ERF": "a gate by GELU with erf",
    "GEGLU_QUICK": "a gate by GELU with a sigmoid",
    "SWIGLU": "a gate by SiLU",
    "REGLU": "a gate by ReLU",
}
PLAIN = replace(ANY_ENGINE, plain=True)  # an engine need not look anything up in a table
# of its distance from the node's own: what came in may be a little off, and a table of halves is
MUCH_NEARER = 2.0**-4


def other_formula(node: Node, shown: NDArray[Any]) -> str:
    """ "": it is none of them. shown: of the node's inputs, or of almost these."""
    if shown.dtype.kind != "f" or not shown.size or not np.isfinite(shown).all():
        return ""
    here, size = worst_distance(node.value.reshape(shown.shape), shown), largest(shown) or 1.0
    for words, other in others(node):
        try:
            value = expect(other, PLAIN).value.reshape(shown.shape)
        except Unsupported:
            continue
        off = worst_distance(value, shown)
        if off <= here * MUCH_NEARER:
            return (
                f"what is shown is {words} of the same input ({off / size:.1e} of the largest off)"
            )
    return ""


def others(node: Node) -> Iterator[tuple[str, Node]]:
    known = next((each for each in (FUNCTIONS, GATES) if node.op in each), {})
    for op, words in known.items():
        if op != node.op:
            yield f"{words}, where llama.cpp has {known[node.op]},", replace(node, op=op)
    if node.op in GATES and node.optional(1) is not None:
        first, second, *rest = node.sources
        turned = replace(node, sources=(second, first, *rest))
        yield f"{known[node.op]} with its two factors exchanged,", turned
