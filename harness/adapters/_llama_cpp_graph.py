"""From llama.cpp's graph nodes to our sites: which node is which, and where its values lie.

Written against src/models/llama.cpp and src/llama-graph.cpp of llama-cpp-python 0.3.36. A product
is known by the weight that it multiplies by, every other node by its name and op: names alone are
ambiguous (`Qcur-0` is a product, a reshape and a rotation).
"""

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import Unsupported
from engine.trace import SITES
from harness.adapters._llama_cpp_lib import GgmlTensor

ARCHITECTURES = ("llama",)  # whose graphs the tables below are known to cover
DTYPES: dict[int, np.dtype[Any]] = {  # of ggml's type ids
    0: np.dtype(np.float32),
    1: np.dtype(np.float16),
    26: np.dtype(np.int32),
    27: np.dtype(np.int64),
}
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A tensor of the graph, while it exists."""

    ggml: ctypes.CDLL
    address: int
    tensor: GgmlTensor

    @classmethod
    def at(cls, ggml: ctypes.CDLL, address: int) -> "Node":
        return cls(ggml, address, GgmlTensor.from_address(address))

    @property
    def name(self) -> str:
        return str(self.tensor.name.decode(errors="replace"))

    @property
    def op(self) -> str:
        return str(self.ggml.ggml_op_name(self.tensor.op).decode())

    def source(self, i: int) -> "Node":
        if not self.tensor.src[i]:
            raise LookupError(f"llama.cpp's {self.op} {self.name!r} has no source {i}")
        return Node.at(self.ggml, self.tensor.src[i])

    def values(self) -> Array:
        """A view of the tensor's memory, slowest dimension first, always with four dimensions."""
        dtype = DTYPES.get(self.tensor.type)
        if dtype is None:
            raise LookupError(f"llama.cpp's {self.name!r} has ggml's type {self.tensor.type}")
        shape = tuple(reversed(self.tensor.ne))
        if 0 in shape:
            return np.empty(shape, dtype)
        memory = (ctypes.c_ubyte * self.ggml.ggml_nbytes(self.address)).from_address(
            self.tensor.data
        )
        strides = tuple(reversed(self.tensor.nb))
        return np.ndarray(shape, dtype, buffer=memory, strides=strides)


def rows(node: Node, _: int) -> Array:
    return node.values()[0, 0, :, :]


def heads(node: Node, _: int) -> Array:
    return node.values()[0, :, :, :]


def column(node: Node, _: int) -> Array:
    return node.values()[0, :, :, 0]  # (tokens, used, 1) without the last


def used_cells(node: Node, cells: int) -> Array:
    """llama.cpp pads the number of cells to a multiple of 256."""
    return node.values()[0, :, :, :cells]  # (heads, tokens, cells)


def cells_first(node: Node, cells: int) -> Array:
    return node.values()[0, :, :cells, :].transpose(1, 0, 2)  # from (kv_heads, cells, head_dim)


def cells_last(node: Node, cells: int) -> Array:
    return node.values()[0, :, :, :cells].transpose(2, 0, 1)  # from (kv_heads, head_dim, cells)


View = Callable[[Node, int], Array]  # of a node, with so many cells in use

PRODUCTS: dict[str, str] = {  # weight, without "blk.N." and ".weight" -> site
    info.weight: name
    for name, info in SITES.items()
    if info.weight is not None and info.op in ("MUL_MAT", "MUL_MAT_ID")
}
BY_NAME: dict[tuple[str, str], tuple[str, View]] = {  # (name, op) -> (site, where it lies)
    ("embd", "GET_ROWS"): ("embd", rows),
    ("attn_norm", "MUL"): ("attn_norm", rows),
    ("Qcur", "ROPE"): ("Qcur_rope", heads),
    ("Kcur", "ROPE"): ("Kcur_rope", heads),
    ("kq", "MUL_MAT"): ("kq", used_cells),
    ("kq_soft_max", "SOFT_MAX"): ("kq_soft_max", used_cells),
    ("kqv_out", "CONT"): ("kqv_out", rows),
    ("kqv_out", "RESHAPE"): ("fattn", rows),
    ("ffn_inp", "ADD"): ("ffn_inp", rows),
    ("ffn_norm", "MUL"): ("ffn_norm", rows),
    ("ffn_swiglu", "GLU"): ("ffn_swiglu", rows),
    ("ffn_moe_probs", "SOFT_MAX"): ("ffn_moe_probs", rows),
    ("ffn_moe_topk", "VIEW"): ("ffn_moe_topk", rows),
    ("ffn_moe_weights", "GET_ROWS"): ("ffn_moe_weights", column),
    ("ffn_moe_weights_norm", "DIV"): ("ffn_moe_weights_norm", rows),
    ("ffn_moe_swiglu", "GLU"): ("ffn_moe_swiglu", heads),
    ("ffn_moe_weighted", "MUL"): ("ffn_moe_weighted", heads),
    ("ffn_moe_out", "ADD"): ("ffn_moe_out", rows),
    ("ffn_moe_out", "CONT"): ("ffn_moe_out", rows),  # of the only expert in use
    ("l_out", "ADD"): ("l_out", rows),
    ("result_norm", "MUL"): ("result_norm", rows),
}
NORM_WEIGHTS = {  # the MUL of a norm must be by this weight
    name: info.weight for name, info in SITES.items() if info.op == "RMS_NORM"
}
SHOWN_LATER = {  # a bias: no site of ours, but it flows into the next one
    *(("Qcur", "ADD"), ("Kcur", "ADD"), ("Vcur", "ADD"), ("attn_out", "ADD")),
}
VIEWS = ("RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # compute nothing
KNOWN_NAMES = {name for name, _ in BY_NAME} | set(PRODUCTS.values())
NAME = re.compile(r"(?P<base>.+?)(?:-(?P<layer>\d+))?")
WEIGHT = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<base>\w+)\.weight")
KEYS_STORED = re.compile(r"cache_k_l\d+ \(view\)")


@dataclass(frozen=True, slots=True)
class Place:
    """The site of a node, and where its values lie."""

    name: str
    layer: int | None
    view: View


def place_of(node: Node) -> Place | None:
    """None for a node that is no site of ours.

    Raises Unsupported for a node that has the name of a site but is computed in another way.
    """
    op = node.op
    if op in ("MUL_MAT", "MUL_MAT_ID"):
        product = product_of(node)
        if product is not None:
            return product
    base, layer = split_name(node.name)
    found = BY_NAME.get((base, op))
    if found is None:
        if base in KNOWN_NAMES and op not in VIEWS and (base, op) not in SHOWN_LATER:
            raise Unsupported(f"llama.cpp's {node.name!r} is a {op}, which we cannot place")
        return None
    site, view = found
    if site == "fattn" and node.source(0).op != "FLASH_ATTN_EXT":
        raise Unsupported(f"llama.cpp's {node.name!r} is no flash attention's output")
    if site in NORM_WEIGHTS and base_of_weight(node.source(1)) != (NORM_WEIGHTS[site], layer):
        raise Unsupported(f"llama.cpp's {node.name!r} is not scaled by {NORM_WEIGHTS[site]}")
    return Place(site, layer, view)


def product_of(node: Node) -> Place | None:
    """The site of a product by a weight; a bias may have taken the node's name from it."""
    weight, layer = base_of_weight(node.source(0))
    if weight == "token_embd" and node.name == "result_output":
        weight = "output"  # tied: one tensor is both
    site = PRODUCTS.get(weight or "")
    if site is None:
        return None
    return Place(site, layer, heads if node.op == "MUL_MAT_ID" else rows)


def base_of_weight(node: Node) -> tuple[str | None, int | None]:
    found = WEIGHT.fullmatch(node.name)
    if found is None:
        return None, None
    return found["base"], None if found["layer"] is None else int(found["layer"])


def split_name(name: str) -> tuple[str, int | None]:
    found = NAME.fullmatch(name)
    if found is None:
        return name, None
    return found["base"], None if found["layer"] is None else int(found["layer"])


def caches_read_by(node: Node, cells: int) -> list[tuple[str, int, Array]]:
    """What an attention node reads from the cache: (site, layer, values).

    The layout of V depends on flash attention: it is stored transposed when that is off.
    """
    base, layer = split_name(node.name)
    if layer is None:
        return []
    if (base, node.op) == ("kq", "MUL_MAT"):
        return [("k_cache", layer, cells_first(node.source(0), cells))]
    if (base, node.op) == ("kqv", "MUL_MAT"):
        return [("v_cache", layer, cells_last(node.source(0), cells))]
    if (base, node.op) == ("kqv_out", "RESHAPE"):
        keys, values = node.source(0).source(1), node.source(0).source(2)
        return [
            ("k_cache", layer, cells_first(keys, cells)),
            ("v_cache", layer, cells_first(values, cells)),
        ]
    return []


def cells_stored_by(node: Node) -> NDArray[np.int64] | None:
    """The cells that a node writes keys to, if it is one that does."""
    if node.op == "SET_ROWS" and KEYS_STORED.fullmatch(node.name):
        return node.source(1).values().reshape(-1).copy()
    return None
