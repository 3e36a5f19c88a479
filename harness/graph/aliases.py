"""The names by which an engine may show a node: llama.cpp's own names, and the names in
harness.sites."""

from collections.abc import Mapping
from dataclasses import replace

from lockstep.engine.adapters.lora import B as LORA_B
from lockstep.engine.node import PLAIN
from lockstep.harness.adapters.llama_cpp.graph import heads, rows
from lockstep.harness.adapters.llama_cpp.sites import (
    BY_NAME,
    MATRIX_PRODUCTS,
    PRODUCTS,
    WEIGHT,
    split_name,
)
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program, TensorView
from lockstep.harness.graph.shown import CACHE
from lockstep.harness.graph.wiring import Wire
from lockstep.harness.records import Site
from lockstep.harness.sites import SITES

# llama.cpp's name of the input with the cells for new keys; each cache has one
CELLS = "attn_inp_k_idxs"
LAYOUTS = (rows, heads)  # views in which ggml's order is the order of sites


def places_by_site(program: Program, wires: Mapping[Place, Wire]) -> dict[Site, Place]:
    """Return every node by all its names. If there are several ubatches, the names of harness.sites
    mean nodes of the first ubatch."""
    found = {wire.site: place for place, wire in wires.items()}
    for graph in program.graphs:
        # with sliding windows there are two caches; engines store those of windows in rings
        windows = sum(root.name == CELLS for root in graph.roots) > 1
        adapted = adapted_products(graph)
        for node in graph.nodes if graph.ubatch == 0 else ():
            place = graph.place(node)
            if node.index in adapted:
                found |= {each: place for each in sites_of_weight(graph, adapted[node.index])}
            names = cache_names(node) if not windows else []
            for name, layer in names + other_names(node, wires[place]):
                found.setdefault(Site(step=graph.step, layer=layer, name=name), place)
    return found


def adapted_products(graph: Graph) -> dict[int, str]:
    """Return the index of each sum W x + scale * B (A x), with the name of its weight W."""
    shares: dict[TensorView, str] = {}  # views that hold B (A x), scaled or not
    found = {}
    for node in graph.nodes:
        first, second = (*node.sources, None, None)[:2]
        shares.pop(node.result, None)  # another node may reuse the memory
        if node.op in MATRIX_PRODUCTS and first and first.name.endswith(LORA_B):
            shares[node.result] = first.name.removesuffix(LORA_B)
        elif node.op == "SCALE" and first in shares:
            shares[node.result] = shares[first]
        elif node.op == "ADD" and second in shares:
            found[node.index] = shares[second]
    return found


def sites_of_weight(graph: Graph, name: str) -> list[Site]:
    """Return the site of a product with this weight. If adapters add to the product, the site means
    the sum."""
    weight = WEIGHT.fullmatch(name)
    if weight is None or weight["base"] not in PRODUCTS:
        return []
    layer = None if weight["layer"] is None else int(weight["layer"])
    return [Site(step=graph.step, layer=layer, name=PRODUCTS[weight["base"]])]


def rename_wires(wires: Mapping[Place, Wire], names: Mapping[Site, Place]) -> dict[Place, Wire]:
    """Return the wires with the names that traces use, for nodes that have such a name."""
    called = {wires[place].site: site for site, place in names.items() if site.name in SITES}
    return {
        place: replace(
            wire,
            site=called.get(wire.site, wire.site),
            inputs=tuple(called.get(site, site) for site in wire.inputs),
        )
        for place, wire in wires.items()
    }


def cache_names(node: PlannedNode) -> list[tuple[str, int | None]]:
    """Return the names of the cache rows that a node stores. A node that stores quantised rows gets
    no name, because engines show values."""
    stores = node.op == "SET_ROWS" and node.result.type in PLAIN
    found = CACHE.fullmatch(node.name) if stores else None
    return [(f"{found['kind']}_cache", int(found["layer"]))] if found else []


def other_names(node: PlannedNode, wire: Wire) -> list[tuple[str, int | None]]:
    base, layer = split_name(node.name)
    known = BY_NAME.get((base, node.op))
    names = [(known[0], layer)] if known and known[1] in LAYOUTS else []
    if (base, node.op) == ("ffn_moe_argsort", "ARGSORT"):
        names.append(("ffn_moe_topk", layer))  # the result of top-k is a view of its first columns
    if node.op == "FLASH_ATTN_EXT":
        names.append(("fattn", wire.layer))
    if node.op in ("MUL_MAT", "MUL_MAT_ID") and wire.weights:
        weight = WEIGHT.fullmatch(wire.weights[0])
        what = "output" if node.name == "result_output" else weight["base"] if weight else ""
        if what in PRODUCTS:
            inside = weight["layer"] if weight else None
            at = None if inside is None else int(inside)
            # the second name is for the product if a sum with a bias has the first
            names += [(PRODUCTS[what], at), (f"{PRODUCTS[what]} {node.op}", at)]
    return names
