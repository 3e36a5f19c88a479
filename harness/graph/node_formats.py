"""Products of an engine that converts activations otherwise than llama.cpp: one format, or none.

An engine has a kernel for a type of weights, and often one for a single row and another for many,
or for chosen experts. So one format must give most of the products of such a kernel: a product
that alone has another format is a fault, and two of which each has its own are two.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.harness.graph.node_designs import compute_design
from lockstep.harness.judging.conversions import families_of_builds, is_type_in_blocks
from lockstep.harness.judging.designs import agrees
from lockstep.harness.records import Site

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
Kernel = tuple[str, str, bool]  # type of the weights, op, whether for many rows
TRIED = 4  # products of a kernel for which all formats are tried in vain before none is any more


@dataclass(kw_only=True, eq=False)
class ProductFormats:
    """Formats that explain one engine's products, by the kernels that engines have for them."""

    build: Build
    products: Counter[Kernel] = field(default_factory=Counter)
    in_vain: Counter[Kernel] = field(default_factory=Counter)
    # of each that is off and that formats give: by their numbers
    given: dict[Kernel, dict[Site, frozenset[int]]] = field(default_factory=dict)

    def count(self, node: Node) -> None:
        if is_converted(node):
            self.products[kernel_of(node)] += 1

    def is_given(self, site: Site, node: Node, shown: NDArray[Any]) -> bool:
        """Return True if another format gives the shown value and llama.cpp's does not. node: a
        node with its weights."""
        if not is_converted(node):
            return False
        kernel = kernel_of(node)
        known = self.given.setdefault(kernel, {})
        if self.in_vain[kernel] >= TRIED and not known:
            return False
        seen = frozenset().union(*known.values())
        found = frozenset(
            n
            for n, family in enumerate(families_of_builds(self.build))
            # those between two steps are few: a format that gives no product is tried two ways
            for tried in [family if n in seen else family[:2]]
            if any(agrees(partial(compute_design, node, build), shown) for build in tried)
        )
        if not found:
            self.in_vain[kernel] += 1
            return False
        known[site] = found
        return True

    def accept_format(self) -> set[Site]:
        """Return the sites that the best format explains."""
        return {site for kernel in self.given for site in self.accepted_of(kernel)}

    def accepted_of(self, kernel: Kernel) -> Collection[Site]:
        known = self.given[kernel]
        sites = [
            [s for s, given in known.items() if n in given] for n in set().union(*known.values())
        ]
        best = max(sites, key=len, default=[])
        return best if 2 * len(best) > self.products[kernel] else []


def kernel_of(node: Node) -> Kernel:
    rows = node.source(1).ne[1] * node.source(1).ne[2]
    return node.source(0).type, node.op, rows > 1


def is_converted(node: Node) -> bool:
    return node.op in PRODUCTS and is_type_in_blocks(node.source(0).type)
