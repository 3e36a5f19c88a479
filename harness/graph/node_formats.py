"""Products of an engine that converts activations differently than llama.cpp, to another format or
not at all.

An engine has a kernel for each type of weights, and often separate kernels for a single row, for
many rows, and for chosen experts. So one format must explain most of the products of a kernel. A
product that agrees only with another format is a fault.
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
Kernel = tuple[str, str, bool]  # type of the weights, op, True for many rows
TRIED = 4  # products of a kernel for which all formats fail, before no more are tried


@dataclass(kw_only=True, eq=False)
class ProductFormats:
    """The formats that explain one engine's products, by kernel."""

    build: Build
    products: Counter[Kernel] = field(default_factory=Counter)
    in_vain: Counter[Kernel] = field(default_factory=Counter)
    # for each wrong product, the numbers of the formats that explain it
    given: dict[Kernel, dict[Site, frozenset[int]]] = field(default_factory=dict)

    def count(self, node: Node) -> None:
        if is_converted(node):
            self.products[kernel_of(node)] += 1

    def is_given(self, site: Site, node: Node, shown: NDArray[Any]) -> bool:
        """Return True if a format other than llama.cpp's gives the shown value, and record the
        format. node: a node with its weights."""
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
            # members of a family differ only for few values, so two of each family are tried first
            for tried in [family if n in seen else family[:2]]
            if any(agrees(partial(compute_design, node, build), shown) for build in tried)
        )
        if not found:
            self.in_vain[kernel] += 1
            return False
        known[site] = found
        return True

    def accept_format(self) -> set[Site]:
        """Return the sites that the best format of each kernel explains. A format must explain most
        products of its kernel."""
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
