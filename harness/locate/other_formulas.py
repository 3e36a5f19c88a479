"""Tests if another function or constant explains an engine's values. Examples are erf GELU, which
many published models use, the two factors of a gate exchanged, or another eps in a norm. The result
changes only the words of the report."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.ggml.base import expect
from lockstep.harness.graph.node_judge import with_weights
from lockstep.harness.graph.program import Place
from lockstep.harness.judging.compare import largest, worst_distance

# ggml's names of ops, and the names of formulas in papers; for one input and for two
FUNCTIONS = {
    "GELU": "tanh GELU",
    "GELU_ERF": "erf GELU",
    "GELU_QUICK": "sigmoid GELU",
    "SILU": "SiLU",
    "RELU": "ReLU",
    "SIGMOID": "the sigmoid alone",
}
GATES = {
    "GEGLU": "a gate by tanh GELU",
    "GEGLU_ERF": "a gate by erf GELU",
    "GEGLU_QUICK": "a gate by sigmoid GELU",
    "SWIGLU": "a gate by SiLU",
    "REGLU": "a gate by ReLU",
}
ERF = "GELU_ERF"
# architectures whose models are published with GELU by erf (hidden_act or activation "gelu" in
# their configurations; nn.GELU in MPT), and for which llama.cpp uses GELU by tanh
PUBLISHED_BY_ERF = {"bert": "BERT", "falcon": "Falcon", "gptneox": "Pythia", "mpt": "MPT"}
NORMS = {"RMS_NORM": "RMSNorm, without a mean", "NORM": "LayerNorm, less the mean"}
EPS = (1e-5, 1e-6, 0.0, 1e-8, 1e-3)  # usual values of engines; 1e-12 has no effect
CARRIED_BY = ("MUL", "ADD")  # ops with a norm's weights and bias
PLAIN = replace(ANY_ENGINE, plain=True)  # an engine need not use tables
# share of the distance from the node's own formula; inputs may be slightly off, and so is an F16
# table
MUCH_NEARER = 2.0**-4
A_STEP = 2.0**-23  # relative step of float32; a smaller difference in distance decides nothing


@dataclass(frozen=True, kw_only=True)
class OtherFormula:
    """Another function that an engine may have used. `op` is ggml's name, and `words` is part of a
    sentence."""

    op: str
    words: str


Made = Mapping[OtherFormula, NDArray[Any]]  # value of each formula


@dataclass(frozen=True, kw_only=True)
class NearestFormulas:
    """Formulas that the numbers cannot distinguish. `error` is relative to the largest shown
    value."""

    alike: tuple[OtherFormula, ...]
    error: float

    def describe(self) -> str:
        words = " or ".join(each.words for each in self.alike)
        return (
            f"the engine shows {words} of the same input (error: {self.error:.1e} of the largest)"
        )


@dataclass
class OtherFormulas:
    """Looks at nodes in graph order. `near` are the shown nodes around `place`, and `file` is the
    oracle's file."""

    file: GgufFile
    near: Collection[Place]
    place: Place
    shown: NDArray[Any]
    text: str = ""  # "" if no formula fits
    made: dict[Place, Made] = field(default_factory=dict)

    def look(self, node: Node) -> None:
        if node.place in self.near and node.place <= self.place:
            self.made[node.place] = made = {**of_node(node), **self.carry(node)}
            if node.place == self.place:
                found = find_nearest(node, self.shown, made)
                self.text = found.describe() + as_published(self.file, found) if found else ""

    def carry(self, node: Node) -> Made:
        """Compute the node from the values of another formula in its inputs, through products with
        weights and sums with a bias."""
        found: dict[OtherFormula, NDArray[Any]] = {}
        for i, source in enumerate(node.sources if node.op in CARRIED_BY else ()):
            before = self.made.get((*node.place[:2], source.producer), {}) if source else {}
            for formula, value in before.items():
                with suppress(Unsupported):  # the subject's file has another weight
                    other = with_source(with_weights(node, self.file), i, value)
                    found |= {formula: expect(other, PLAIN).value} if other else {}
        return found


def as_published(file: GgufFile, found: NearestFormulas) -> str:
    """Return a clause if the engine uses the function of the published model and llama.cpp does
    not; else ""."""
    name = PUBLISHED_BY_ERF.get(str(file.metadata["general.architecture"].data))
    if name is None or all(each.op != ERF for each in found.alike):
        return ""
    return f"; {name} is published with {FUNCTIONS[ERF]}, and llama.cpp uses tanh GELU for it"


def with_source(node: Node, i: int, value: NDArray[Any]) -> Node | None:
    """Return the node with source i replaced by this value; None if the sizes differ."""
    source = node.source(i)
    if source.value is None or source.value.size != value.size:
        return None
    given = value.reshape(source.value.shape).astype(source.value.dtype)
    sources = list(node.sources)
    sources[i] = replace(source, value=given)
    return replace(node, sources=tuple(sources))


def other_formula(node: Node, shown: NDArray[Any]) -> str:
    """Describe the other formula that explains the shown values; "" if none does. `shown` are an
    engine's values, computed from the node's inputs or from nearly the same inputs."""
    found = find_nearest(node, shown, of_node(node))
    return found.describe() if found else ""


def find_nearest(node: Node, shown: NDArray[Any], made: Made) -> NearestFormulas | None:
    """Return the formulas that are much nearer to the shown values than the node's own."""
    if shown.dtype.kind != "f" or not shown.size or not np.isfinite(shown).all():
        return None
    if shown.size != node.value.size or not made:
        return None
    here, size = worst_distance(node.value.reshape(shown.shape), shown), largest(shown) or 1.0
    off = {each: worst_distance(v.reshape(shown.shape), shown) for each, v in made.items()}
    least = min(off.values())
    if not isfinite(here) or least > here * MUCH_NEARER:
        return None
    alike = tuple(each for each in off if off[each] <= least + A_STEP * size)
    return NearestFormulas(alike=alike, error=least / size)


def of_node(node: Node) -> Made:
    found: dict[OtherFormula, NDArray[Any]] = {}
    for words, other in others(node):
        try:
            found[OtherFormula(op=other.op, words=words)] = expect(other, PLAIN).value
        except Unsupported:
            continue
    return found


def others(node: Node) -> Iterator[tuple[str, Node]]:
    known = next((each for each in (FUNCTIONS, GATES, NORMS) if node.op in each), {})
    for op, words in known.items():
        if op != node.op:
            yield f"{words} (llama.cpp: {known[node.op]})", replace(node, op=op)
    if node.op in GATES and node.optional(1) is not None:
        first, second, *rest = node.sources
        turned = replace(node, sources=(second, first, *rest))
        yield f"{known[node.op]} with its two factors exchanged", turned
    if node.op in NORMS:
        yield from of_other_eps(node)


def of_other_eps(node: Node) -> Iterator[tuple[str, Node]]:
    own = node.floats()[0]
    for eps in EPS:
        if np.float32(eps) != own:
            params = node.params.copy()
            params.view(np.float32)[0] = eps
            words = f"the norm with eps {eps:g} (llama.cpp: {own:g})"
            yield words, replace(node, params=params)
