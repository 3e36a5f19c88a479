"""Products of an engine that converts activations otherwise than llama.cpp: one format, or none.

An engine has a kernel for a type of weights, so one format must give all that is off with that
type, or most of its products. Two products that only two different formats give are two faults.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from engine.ops.build import Build
from engine.ops.ggml.base import Node
from harness.conversions import builds, is_type_in_blocks
from harness.designs import agrees
from harness.graph.node_designs import computed
from harness.records import Site

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
TRIED = 4  # products of a type for which twelve formats are tried in vain before none is any more


@dataclass(kw_only=True, eq=False)
class ProductFormats:
    """Of one engine's products, by the type of their weights."""

    build: Build
    products: Counter[str] = field(default_factory=Counter)
    in_vain: Counter[str] = field(default_factory=Counter)
    # of each that is off and that formats give: by their numbers
    given: dict[str, dict[Site, frozenset[int]]] = field(default_factory=dict)

    def count(self, node: Node) -> None:
        if is_converted(node):
            self.products[node.source(0).type] += 1

    def is_given(self, site: Site, node: Node, shown: NDArray[Any]) -> bool:
        """node: with its weights; shown: by the engine, which llama.cpp's format does not give."""
        if not is_converted(node):
            return False
        kind = node.source(0).type
        known = self.given.setdefault(kind, {})
        if self.in_vain[kind] >= TRIED and not known:
            return False
        every = enumerate(builds(self.build, every=True))
        found = frozenset(n for n, build in every if agrees(partial(computed, node, build), shown))
        if not found:
            self.in_vain[kind] += 1
            return False
        known[site] = found
        return True

    def accepted(self) -> set[Site]:
        """Those that the one format gives which gives most."""
        return {site for kind in self.given for site in self.accepted_of(kind)}

    def accepted_of(self, kind: str) -> Collection[Site]:
        known = self.given[kind]
        sites = [
            [s for s, given in known.items() if n in given] for n in set().union(*known.values())
        ]
        best = max(sites, key=len, default=[])
        is_all = len(best) == len(known) + self.in_vain[kind]
        return best if is_all or 2 * len(best) > self.products[kind] else []


def is_converted(node: Node) -> bool:
    return node.op in PRODUCTS and is_type_in_blocks(node.source(0).type)
