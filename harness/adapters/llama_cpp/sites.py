"""The map from llama.cpp's graph nodes to our sites, for every version.

It was written for the llama graphs of llama-cpp-python 0.3.8, 0.3.16 and 0.3.36. Tests compare the
tables with recorded graphs of all three. A node on a weight or on the cache is recognised by that
weight or cache. Its name may differ between versions, be ambiguous (`Qcur-0` is a product, a
reshape and a rotation), or be missing. Other nodes are recognised by name and op. No two versions
use the same name and op for different sites, so one table serves all versions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.adapters.lora import B as LORA_B
from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.llama_cpp.graph import (
    Array,
    LiveNode,
    cells_first,
    cells_last,
    column,
    heads,
    heads_side_by_side,
    rows,
    used_cells,
)
from lockstep.harness.sites import SITES

ARCHITECTURES = ("llama",)  # architectures whose graphs the tables below cover
View = Callable[[LiveNode, int], Array]  # takes a node and the number of used cells

PRODUCTS: dict[str, str] = {  # weight without "blk.N." and ".weight" -> site
    info.weight: name
    for name, info in SITES.items()
    if info.weight is not None and info.op in ("MUL_MAT", "MUL_MAT_ID")
}
BY_NAME: dict[tuple[str, str], tuple[str, View]] = {  # (name, op) -> (site, view of its values)
    ("embd", "GET_ROWS"): ("embd", rows),
    ("inp_embd", "GET_ROWS"): ("embd", rows),  # name in 0.3.8 and 0.3.16
    ("embd", "ADD"): ("embd", rows),  # includes an adapter's part
    ("attn_norm", "MUL"): ("attn_norm", rows),
    ("Qcur", "ROPE"): ("Qcur_rope", heads),
    ("Kcur", "ROPE"): ("Kcur_rope", heads),
    ("kqv_out", "CONT"): ("kqv_out", rows),
    # name in 0.3.8, where `attn_out` is called kqv_out
    ("kqv_merged_cont", "CONT"): ("kqv_out", rows),
    ("ffn_inp", "ADD"): ("ffn_inp", rows),
    ("ffn_norm", "MUL"): ("ffn_norm", rows),
    ("ffn_swiglu", "GLU"): ("ffn_swiglu", rows),
    # in 0.3.8, the product of SILU and the other factor
    ("ffn_gate_par", "MUL"): ("ffn_swiglu", rows),
    ("ffn_moe_probs", "SOFT_MAX"): ("ffn_moe_probs", rows),
    ("ffn_moe_topk", "VIEW"): ("ffn_moe_topk", rows),
    ("ffn_moe_weights", "GET_ROWS"): ("ffn_moe_weights", column),
    ("ffn_moe_weights_norm", "DIV"): ("ffn_moe_weights_norm", rows),
    ("ffn_moe_swiglu", "GLU"): ("ffn_moe_swiglu", heads),
    # 0.3.16 gives this name twice by mistake
    ("ffn_moe_weighted", "GLU"): ("ffn_moe_swiglu", heads),
    ("ffn_moe_gate_par", "MUL"): ("ffn_moe_swiglu", heads),  # name in 0.3.8
    ("ffn_moe_out", "ADD"): ("ffn_moe_out", rows),
    ("ffn_moe_out", "CONT"): ("ffn_moe_out", rows),  # if only one expert is used
    ("l_out", "ADD"): ("l_out", rows),
    ("result_norm", "MUL"): ("result_norm", rows),
}
NORM_WEIGHTS = {  # the MUL of a norm must have this weight
    name: info.weight for name, info in SITES.items() if info.op == "RMS_NORM"
}
SHOWN_LATER = {  # results with a bias, which are part of the next site
    *(("Qcur", "ADD"), ("Kcur", "ADD"), ("Vcur", "ADD"), ("attn_out", "ADD")),
    ("kqv_out", "ADD"),  # name in 0.3.8
}
MATRIX_PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
VIEWS = ("RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # ops that compute nothing
KNOWN_NAMES = {name for name, _ in BY_NAME} | set(SITES)
NAME = re.compile(r"(?P<base>.+?)(?:-(?P<layer>\d+))?")
WEIGHT = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<base>\w+)\.weight")
CACHE = re.compile(r"cache_(?P<kind>[kv])_l(?P<layer>\d+)")


class GraphNode(Protocol):
    """The facts that determine a node's site."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def root(self) -> "GraphNode": ...
    def source(self, i: int) -> "GraphNode": ...


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The site of a node, and the view that gives its values."""

    name: str
    layer: int | None
    view: View
    is_adapted: bool = False  # the site's value includes one more adapter's part


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part of the cache that a node reads: its site, the number of the source, and the view that
    gives its values."""

    name: str
    layer: int
    source: int
    view: View


def place_of(node: GraphNode) -> NodePlace | None:
    """Return the node's site; None if the node has no site. Raises Unsupported for a node that has
    a site's name but is computed differently."""
    place = product_of(node) or attention_of(node)
    if place is not None:
        return place
    op = node.op
    base, layer = split_name(node.name)
    found = BY_NAME.get((base, op))
    if found is None:
        if base in KNOWN_NAMES and op not in VIEWS and (base, op) not in SHOWN_LATER:
            raise Unsupported(f"llama.cpp's {node.name!r} is a {op}, which we cannot place")
        return None
    site, view = found
    if site in NORM_WEIGHTS and base_of_weight(node.source(1).name) != (NORM_WEIGHTS[site], layer):
        raise Unsupported(f"llama.cpp's {node.name!r} is not scaled by {NORM_WEIGHTS[site]}")
    return NodePlace(site, layer, view)


def product_of(node: GraphNode) -> NodePlace | None:
    """Return the site of a product with a weight, whatever the node's name, because the name may
    belong to a bias. Some versions give no name to the experts' results multiplied by their
    shares."""
    if node.op == "MUL":
        name = multiplied_weight(node.source(0))
        weight, layer = base_of_weight(name)
        return NodePlace("ffn_moe_weighted", layer, heads) if weight == "ffn_down_exps" else None
    name, adapted = multiplied_weight(node), node.op == "ADD"
    weight, layer = base_of_weight(name)
    if weight == "token_embd" and node.name == "result_output":
        weight = "output"  # the tied tensor serves as both
    site = PRODUCTS.get(weight or "")
    if site is None:
        return None
    product = node.source(1).source(0) if adapted else node
    return NodePlace(site, layer, heads if product.op == "MUL_MAT_ID" else rows, adapted)


def multiplied_weight(node: GraphNode) -> str:
    """Return the name of the weight in a product, or in a product with an adapter's share: W x +
    scale * B (A x). Return "" for other nodes."""
    if node.op in MATRIX_PRODUCTS:
        return node.source(0).name
    if node.op != "ADD" or node.source(1).op != "SCALE":
        return ""
    share = node.source(1).source(0)
    name = share.source(0).name if share.op in MATRIX_PRODUCTS else ""
    return name.removesuffix(LORA_B) if name.endswith(LORA_B) else ""


def attention_of(node: GraphNode) -> NodePlace | None:
    """Return the site of an op on the cache, or of attention weights; None for other nodes."""
    if node.op == "MUL_MAT" and (layer := layer_of_cache(node.source(0), "k")) is not None:
        return NodePlace("kq", layer, used_cells)
    if node.op == "SOFT_MAX":
        scores = attention_of(node.source(0))
        if scores is not None and scores.name == "kq":
            return NodePlace("kq_soft_max", scores.layer, used_cells)
    if node.op == "FLASH_ATTN_EXT" and (layer := layer_of_cache(node.source(1), "k")) is not None:
        return NodePlace("fattn", layer, heads_side_by_side)
    return None


def caches_read_by(node: GraphNode) -> list[HeldPart]:
    """Return the caches that a node reads. Without flash attention V is stored transposed."""
    if node.op == "MUL_MAT":
        if (layer := layer_of_cache(node.source(0), "k")) is not None:
            return [HeldPart("k_cache", layer, 0, cells_first)]
        if (layer := layer_of_cache(node.source(0), "v")) is not None:
            return [HeldPart("v_cache", layer, 0, cells_last)]
    if node.op == "FLASH_ATTN_EXT" and (layer := layer_of_cache(node.source(1), "k")) is not None:
        return [
            HeldPart("k_cache", layer, 1, cells_first),
            HeldPart("v_cache", layer, 2, cells_first),
        ]
    return []


def layer_of_cache(node: GraphNode, kind: str) -> int | None:
    """Return the layer of the keys' ("k") or values' ("v") cache that a node is a view of; None if
    it is a view of something else."""
    found = CACHE.fullmatch(node.root.name)
    return int(found["layer"]) if found and found["kind"] == kind else None


def base_of_weight(name: str) -> tuple[str | None, int | None]:
    found = WEIGHT.fullmatch(name)
    if found is None:
        return None, None
    return found["base"], None if found["layer"] is None else int(found["layer"])


def split_name(name: str) -> tuple[str, int | None]:
    found = NAME.fullmatch(name)
    if found is None:
        return name, None
    return found["base"], None if found["layer"] is None else int(found["layer"])


def stores_keys(node: GraphNode) -> bool:
    """Return True if a node stores keys. Older versions copy keys into a view of neighbouring
    cells, and newer versions set rows."""
    return node.op in ("SET_ROWS", "CPY") and layer_of_cache(node, "k") is not None


def cells_stored_by(node: LiveNode) -> NDArray[np.int64]:
    """Return the cells into which a node writes keys."""
    if node.op == "SET_ROWS":
        return node.source(1).values().reshape(-1).astype(np.int64)
    keys = node.source(0)  # (head_dim, kv_heads, tokens), or reshaped to (width, tokens)
    tokens = keys.ne[1 if keys.op == "RESHAPE" else 2]
    first = node.tensor.view_offs * tokens // node.ggml.ggml_nbytes(node.address)
    return np.arange(first, first + tokens)
