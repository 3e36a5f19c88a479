"""Flash attention on the CPU.

There are three paths: one key at a time, with sums of values in halves if the cache holds halves;
one key at a time in pieces of the cache that are merged (one token, at least 512 cells); tiles of
64 queries in float32 (64 tokens or more). Source: ggml_compute_forward_flash_attn_ext in
ggml-cpu/ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import HALVES
from lockstep.engine.errors import Unsupported
from lockstep.engine.node import PLAIN, Node, Operand
from lockstep.engine.ops.attention import attend
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.coded import format_of, is_coded, width_of
from lockstep.engine.ops.flash_mirror import LANES_UP, NO_SINK, STEP, TILE, FlashMirror, one_by_one
from lockstep.engine.ops.functions import tanh
from lockstep.engine.ops.ggml.base import meaning
from lockstep.engine.ops.ggml.products import matrix, multiply_exactly
from lockstep.engine.ops.ggml.soft_max import slopes
from lockstep.engine.ops.near import (
    F64,
    SMALLEST,
    TANH_ULP,
    ULP,
    Expected,
    Near,
    U,
    near,
    rearrange,
)

REASON = "a running bound through the mirrored online softmax"


@dataclass(frozen=True, eq=False)
class Form:
    """Parameters of an attention node."""

    scale: float
    max_bias: float
    softcap: float
    mask: F64 | None  # (1 or heads, tokens, cells)
    sinks: F64 | None  # (heads,)


@meaning("FLASH_ATTN_EXT")
def flash_attn_ext(node: Node, build: Build) -> Expected:
    """Attend by head, as ggml orders the axes. q: (1, heads, tokens, dim), k, v: (1, kv_heads,
    cells, dim) -> (1, tokens, heads, dim)."""
    q, k, v = (node.source(i) for i in range(3))
    if q.ne[3] != 1:
        raise Unsupported("FLASH_ATTN_EXT of several streams")
    form = form_of(node)
    if build.plain:
        return in_any_order(node, form, build)
    floats = k.type == v.type and k.type in ("F16", "F32")
    if floats and q.ne[1] >= TILE:
        return in_any_order(node, form, build, tile=TILE)
    value, allowed = sequential(node, form, build, split=floats)
    value = single(value)
    return Expected(value, allowed + U * np.abs(value) + SMALLEST, REASON)


def call(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    scale: float,
    visible: NDArray[np.bool_],
    cap: float,
    sinks: NDArray[Any] | None,
) -> Node:
    """Return a node for this attention. q: (tokens, heads, dim), k, v: (cells, kv_heads, dim)."""
    params = np.zeros(16, np.int32)
    params.view(np.float32)[:3] = scale, 0.0, cap
    mask = np.where(visible, 0.0, -np.inf).astype(np.float16)[:, None]
    heads = (as_operand(x.transpose(1, 0, 2)[None]) for x in (q, k, v, mask))
    ends = None if sinks is None else as_operand(sinks.reshape(1, 1, 1, -1))
    value = np.zeros((1, len(q), q.shape[1], width_of(v)), np.float32)
    return Node(
        step=0,
        ubatch=0,
        index=0,
        op="FLASH_ATTN_EXT",
        name="",
        layer=None,
        type="F32",
        ne=value.shape[::-1],
        params=params,
        sources=(*heads, ends),
        value=value,
    )


def as_node(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    scale: float,
    visible: NDArray[np.bool_],
    cap: float,
    sinks: NDArray[Any] | None,
    flash: FlashMirror,
    build: Build,
) -> Near:
    """Compute attention as ggml's node does, without a captured node: (tokens, heads * dim of
    values).
    """
    unused = flash.n_kv(len(k)) - len(k)  # unused cells that ggml adds after the used ones
    k, v = (np.concatenate([x, np.zeros((unused, *x.shape[1:]), x.dtype)]) for x in (k, v))
    node = call(q, k, v, scale, np.pad(visible, ((0, 0), (0, unused))), cap, sinks)
    found = flash_attn_ext(node, build)
    shape = len(q), q.shape[1] * width_of(v)
    allowed = np.broadcast_to(found.allowed, found.value.shape)
    return Near(found.value.reshape(shape), allowed.reshape(shape), found.reason)


def as_operand(x: NDArray[Any]) -> Operand:
    if is_coded(x):
        raw = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape[:-1], -1)
        ne = (width_of(x), *x.shape[-2::-1])
        return Operand(name="", type=format_of(x).name, ne=ne, value=raw)
    kind = {np.dtype(np.float16): "F16", np.dtype(np.float32): "F32"}[x.dtype]
    return Operand(name="", type=kind, ne=x.shape[::-1], value=np.ascontiguousarray(x))


def in_any_order(node: Node, form: Form, build: Build, tile: int = 1) -> Expected:
    """Compute attention without halves, either with all scores first or with a running softmax in
    tiles.
    """
    q, k, v = (node.wide(i)[0] for i in range(3))
    if build.factors is not None:
        q = build.factors.round("queries", q, build.tip)
        k, v = build.factors.round("keys", k), build.factors.round("values", v)
    heads = len(q)
    k, v = (np.repeat(x, heads // len(x), axis=0) for x in (k, v))
    added = np.zeros((1, 1, 1)) if form.mask is None else slopes(heads, form.max_bias) * form.mask
    sinks = None if form.sinks is None else form.sinks[:, None, None]
    found = near(
        attend(
            q,
            k,
            v,
            added,
            form.scale,
            # terms are added one after the other, whatever the build; in a tile, all share one
            # maximum
            replace(build, lanes=1, plain=tile == 1),
            softcap=form.softcap,
            sinks=sinks,
            tile=tile,
        )
    )
    tokens_first = near(rearrange(found, lambda x: x.transpose(1, 0, 2)[None]))
    return tokens_first.expect("attention in float32, in any order")


def form_of(node: Node) -> Form:
    scale, max_bias, softcap = (float(f) for f in node.floats()[:3])
    tokens = node.source(0).ne[1]
    mask = None if node.optional(3) is None else node.wide(3)[0, :, :tokens]
    sinks = None if node.optional(4) is None else node.wide(4).reshape(-1)
    return Form(scale, max_bias, softcap, mask, sinks)


def halves(x: F64) -> F64:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float64)


def single(x: F64) -> F64:
    """Round to float32 as ggml does. Halves are rounded later, from this float32."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float64)


def sequential(node: Node, form: Form, build: Build, *, split: bool) -> tuple[F64, F64]:
    """Compute key by key. With one token, a cache of 512 or more cells may be cut into pieces whose
    results are merged.
    """
    ordered = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in scores(node, form, build))
    v = np.ascontiguousarray(node.wide(2)[0], np.float32)  # (kv_heads, cells, dim)
    tokens, cells = node.source(0).ne[1], v.shape[1]
    mirror = FlashMirror(build.n_threads, cells)
    edges = mirror.pieces(tokens, cells) if split else np.array([0, cells])
    narrow = node.source(2).type == "F16"
    sinks = NO_SINK if form.sinks is None else form.sinks
    whole = v.shape[2] // STEP * STEP if narrow and HALVES in build.generic else 0
    value, radius = one_by_one(*ordered, v, edges, narrow, sinks, whole)
    return value[None], radius[None]


def scores(node: Node, form: Form, build: Build) -> tuple[F64, F64, NDArray[np.bool_]]:
    """Return each score, its radius, and a mask of visible cells: (heads, tokens, cells)."""
    dot, off = dots(node, build)
    scale = form.scale
    if form.softcap:  # ggml includes the cap in the factor
        scale = float(np.float32(scale) / np.float32(form.softcap))
    s = single(single(dot) * scale)
    off = off * abs(scale) + 2 * U * np.abs(s)
    if form.softcap:
        s = form.softcap * tanh(s)
        off = abs(form.softcap) * off + (TANH_ULP * ULP + U) * np.abs(s)
    mask = np.zeros((1, 1, 1)) if form.mask is None else form.mask
    added = np.broadcast_to(slopes(len(s), form.max_bias) * mask, s.shape)
    on = np.isfinite(added)
    bias = np.where(on, added, 0.0)
    off = off + np.where(bias != 0, U * (np.abs(s + bias) + 4 * np.abs(bias)), 0.0)
    return s + bias, off, on


def dots(node: Node, build: Build) -> tuple[F64, F64]:
    """Return queries times keys. The type of the keys decides how queries are converted first."""
    keys, q = node.source(1), node.wide(0)[0]
    group = len(q) // keys.ne[2]
    if keys.type not in PLAIN:
        parts = [
            multiply_exactly(
                np.ascontiguousarray(x, np.float32), matrix(keys, 0, head // group), build
            ).settle()
            for head, x in enumerate(q)
        ]
        return np.stack([p.value for p in parts]), np.stack([p.allowed for p in parts])
    q = halves(q) if keys.type == "F16" else q
    k = np.repeat(node.wide(1)[0], group, axis=0).transpose(0, 2, 1)
    size = build.multiply(np.abs(q), np.abs(k))
    return build.multiply(q, k), (q.shape[-1] // 4 + LANES_UP) * U * size
