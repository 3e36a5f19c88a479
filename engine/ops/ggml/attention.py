"""Flash attention on the CPU: one key at a time, values added up in halves if the cache holds them.

The common form goes to the mirror of a whole engine (engine/ops/flash_mirror.py), which knows all
three paths. What that lacks (ALiBi, soft caps, sinks, masks with values, values narrower than keys,
quantised caches) is done here. Source: ggml_compute_forward_flash_attn_ext in
ggml-cpu/ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import Unsupported
from engine.ops.flash_mirror import LANES_UP, TILE, FlashMirror
from engine.ops.functions import exp, tanh
from engine.ops.ggml.base import F64, PLAIN, SMALLEST, Build, Expected, Node, Operand, U, meaning
from engine.ops.ggml.near import (
    EXP_ULP,
    LIBM_ULP,
    TANH_ULP,
    ULP,
    Near,
    constant,
    exact,
    finite,
    total,
)
from engine.ops.ggml.products import matrix, multiplied
from engine.ops.ggml.soft_max import slopes
from engine.ops.products import Multiply

REASON = "a running bound through the mirrored online softmax"


@dataclass(frozen=True, eq=False)
class Form:
    """What a node asks for."""

    scale: float
    max_bias: float
    softcap: float
    mask: F64 | None  # (1 or heads, tokens, cells)
    sinks: F64 | None  # (heads,)

    @property
    def plain(self) -> bool:
        hidden = self.mask is None or bool(((self.mask == 0) | np.isneginf(self.mask)).all())
        shared = self.mask is None or len(self.mask) == 1
        return hidden and shared and not (self.max_bias or self.softcap) and self.sinks is None


@meaning("FLASH_ATTN_EXT")
def flash_attn_ext(node: Node, build: Build) -> Expected:
    """q: (1, heads, tokens, dim), k, v: (1, kv_heads, cells, dim) -> (1, tokens, heads, dim)."""
    q, k, v = (node.source(i) for i in range(3))
    if q.ne[3] != 1:
        raise Unsupported("FLASH_ATTN_EXT of several streams")
    form = form_of(node)
    if build.plain:
        return in_any_order(node, form, build)
    floats = k.type == v.type and k.type in ("F16", "F32")
    if floats and form.plain and k.ne[0] == v.ne[0]:
        value, allowed = by_mirror(node, form, build)
    elif floats and q.ne[1] >= TILE:
        return in_any_order(node, form, build, rescalings=k.ne[1] / TILE + 1)
    else:
        value, allowed = sequential(node, form, build, split=floats)
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
    """A node that nobody captured. q: (tokens, heads, dim), k, v: (cells, kv_heads, dim)."""
    params = np.zeros(16, np.int32)
    params.view(np.float32)[:3] = scale, 0.0, cap
    mask = np.where(visible, 0.0, -np.inf).astype(np.float16)[:, None]
    heads = (as_operand(x.transpose(1, 0, 2)[None]) for x in (q, k, v, mask))
    ends = None if sinks is None else as_operand(sinks.reshape(1, 1, 1, -1))
    value = np.zeros((1, len(q), q.shape[1], v.shape[2]), np.float32)
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


def as_operand(x: NDArray[Any]) -> Operand:
    kind = {np.dtype(np.float16): "F16", np.dtype(np.float32): "F32"}[x.dtype]
    return Operand(name="", type=kind, ne=x.shape[::-1], value=np.ascontiguousarray(x))


def in_any_order(node: Node, form: Form, build: Build, rescalings: float | None = None) -> Expected:
    """Without halves: all scores first, or a running softmax; tiles are one of its ways."""
    q, k, v = (node.wide(i)[0] for i in range(3))
    heads = len(q)
    k, v = (np.repeat(x, heads // len(x), axis=0) for x in (k, v))
    added = np.zeros((1, 1, 1)) if form.mask is None else slopes(heads, form.max_bias) * form.mask
    sinks = None if form.sinks is None else form.sinks[:, None, None]
    cap = form.softcap
    found = attended(
        q,
        k,
        v,
        added,
        scale=form.scale,
        multiply=build.multiply,
        softcap=cap,
        sinks=sinks,
        rescalings=rescalings,
    )
    radius = np.asarray(found.r).transpose(1, 0, 2)[None]
    tokens_first = Near(found.v.transpose(1, 0, 2)[None], radius)
    return tokens_first.expected("attention in float32, in any order")


def attended(
    q: F64,
    k: F64,
    v: F64,
    added: F64,
    *,
    scale: float,
    multiply: Multiply,
    softcap: float = 0.0,
    sinks: F64 | None = None,
    rescalings: float | None = None,
) -> Near:
    """q: (heads, tokens, dim), k, v: (heads, cells, dim), added to scores: broadcasts to (heads,
    tokens, cells), minus infinity hides -> (heads, tokens, dim of v); zero where all is hidden.

    A running softmax may scale down what it has at every cell, or so many times: a power and two
    products, which `rescaled` counts for each.
    """
    turned = k.transpose(0, 2, 1)
    size = multiply(np.abs(q), np.abs(turned))
    dots = Near(multiply(q, turned), (q.shape[-1] + 1) * U * size)
    s = dots * constant(scale)
    if softcap:
        s = (s / constant(softcap)).tanh() * constant(softcap)
    s = finite(s + Near(added, 4 * U * np.abs(np.where(np.isfinite(added), added, 0.0))))
    top = s.v.max(axis=-1, keepdims=True)
    top = top if sinks is None else np.maximum(top, sinks)
    top = np.where(np.isfinite(top), top, 0.0)
    top_r = np.broadcast_to(s.r, s.v.shape).max(axis=-1, keepdims=True)
    powers = (s - Near(top, top_r)).exp()
    rescaled = (rescalings or s.v.shape[-1]) * (EXP_ULP * ULP + 2 * U)
    powers = Near(powers.v, np.where(powers.v == 0, 0.0, powers.r + rescaled * powers.v))
    sums = total(powers, s.v.shape[-1])
    if sinks is not None:
        sums = sums + (exact(sinks) - Near(top, top_r)).exp()
    r, wide = multiply(np.asarray(powers.r), np.abs(v)), multiply(powers.v, np.abs(v))
    terms = Near(multiply(powers.v, v), r + v.shape[1] * U * wide)
    out = terms / sums
    hidden = sums.v == 0
    return Near(np.where(hidden, 0.0, out.v), np.where(hidden, 0.0, out.r))


def form_of(node: Node) -> Form:
    scale, max_bias, softcap = (float(f) for f in node.floats()[:3])
    tokens = node.source(0).ne[1]
    mask = None if node.optional(3) is None else node.wide(3)[0, :, :tokens]
    sinks = None if node.optional(4) is None else node.wide(4).reshape(-1)
    return Form(scale, max_bias, softcap, mask, sinks)


def by_mirror(node: Node, form: Form, build: Build) -> tuple[F64, F64]:
    values = [node.source(i).value for i in range(3)]
    ordered = [x[0].transpose(1, 0, 2) for x in values if x is not None]
    visible = np.ones((len(ordered[0]), len(ordered[1])), bool)
    if form.mask is not None:
        visible = np.ascontiguousarray(form.mask[0] == 0)
    mirror = FlashMirror(n_threads=build.n_threads, n_ctx=len(ordered[1]))
    queries = ordered[0].astype(np.float32)
    found = mirror.attend(queries, ordered[1], ordered[2], form.scale, visible)
    shape = node.value.shape
    return found.out.astype(np.float64).reshape(shape), found.radius.reshape(shape)


@dataclass(eq=False)
class Running:
    """The state of the online softmax: accumulators, sums, largest scores, and their radii."""

    y: F64  # (heads, tokens, dim of values)
    r: F64
    total: F64  # (heads, tokens, 1)
    r_total: F64
    top: F64
    r_top: F64
    narrow: bool

    def add(self, s: F64, r_s: F64, on: NDArray[np.bool_], v: F64) -> None:
        """One key: scores (heads, tokens, 1), where it is seen, and its value (heads, 1, dim).

        Scores that are the same infinity are NaN apart, and so is what becomes of them in ggml.
        """
        above = on & (s > self.top)
        apart = np.where(on, np.abs(s - self.top), 0.0)
        power = exp(-apart).astype(np.float32).astype(np.float64)
        off = power_off(power, r_s + self.r_top, apart)
        ms, r_ms = np.where(above, power, 1.0), np.where(above, off, 0.0)
        vs = np.where(on, np.where(above, 1.0, power), 0.0)
        r_vs = np.where(on & ~above, off, 0.0)
        self.top, self.r_top = np.where(above, s, self.top), np.where(above, r_s, self.r_top)
        z = self.y * ms
        wide = self.r * ms + np.abs(self.y) * r_ms + np.where(above, U * np.abs(z), 0.0)
        self.y, self.r = self.kept(z, wide, above)
        term = v * vs
        z = self.y + term
        rounded = np.where(term != 0, U * (np.abs(term) + np.abs(z)), 0.0)
        self.y, self.r = self.kept(z, self.r + np.abs(v) * r_vs + rounded, on)
        old = self.total
        self.total = old * ms + vs
        self.r_total = self.r_total * ms + old * r_ms + r_vs
        self.r_total = self.r_total + np.where(on, 2 * U * self.total, 0.0)

    def sink(self, s: F64) -> None:
        """A score without a value, after the keys and in float32; it may be the new maximum."""
        self.narrow = False
        shape = self.top.shape
        scores, nothing = np.broadcast_to(s, shape), np.zeros((shape[0], 1, 1))
        self.add(scores, np.zeros(shape), np.ones(shape, bool), nothing)

    @classmethod
    def empty(cls, shape: tuple[int, int, int], dim: int, narrow: bool) -> "Running":
        wide, none = (*shape[:2], dim), np.full(shape, -np.inf)
        zeros = (np.zeros(wide), np.zeros(wide), np.zeros(shape), np.zeros(shape))
        return cls(*zeros, top=none, r_top=np.zeros(shape), narrow=narrow)

    def merged(self, other: "Running") -> "Running":
        """Two pieces of the cache, in float32; one that saw nothing is left out."""
        first = self.top >= other.top
        top, r_top = np.where(first, self.top, other.top), np.where(first, self.r_top, other.r_top)
        (a, r_a), (b, r_b) = (x.lowered(top, r_top) for x in (self, other))
        y, y_b = self.y * a, other.y * b
        total, total_b = self.total * a, other.total * b
        both = (self.total != 0) & (other.total != 0)
        return Running(
            y=y + y_b,
            r=self.r * a + np.abs(self.y) * r_a + other.r * b + np.abs(other.y) * r_b
            + np.where(both, 2 * U * (np.abs(y) + np.abs(y_b)), 0.0),
            total=total + total_b,
            r_total=self.r_total * a + self.total * r_a + other.r_total * b + other.total * r_b
            + np.where(both, 2 * U * (total + total_b), 0.0),
            top=top,
            r_top=r_top,
            narrow=False,
        )  # fmt: skip

    def lowered(self, top: F64, r_top: F64) -> tuple[F64, F64]:
        """The power by which a piece is scaled below a larger maximum, and how far it may be off.

        Where it has the maximum itself the power is one in every run, or what both sums share.
        """
        apart = np.where(self.total == 0, np.inf, top - self.top)
        power = exp(-apart)
        off = power_off(power, self.r_top + r_top, apart)
        return power, np.where(apart == 0, 0.0, off)

    def kept(self, z: F64, wide: F64, changed: NDArray[np.bool_]) -> tuple[F64, F64]:
        """As it is stored: a radius ends where the whole interval rounds to one half."""
        y, r = z, wide
        if self.narrow:
            low, high = halves(z - wide), halves(z + wide)
            y = halves(z)
            r = np.maximum(high - y, y - low)
        return np.where(changed, y, self.y), np.where(changed, r, self.r)


def power_off(power: F64, r: F64, apart: F64) -> F64:
    """How far expf of a difference may be off: its arguments by r, its own rounding, expf's."""
    return np.where(power > 0, power * (r + U * apart + LIBM_ULP * ULP), 0.0)


def halves(x: F64) -> F64:
    return x.astype(np.float16).astype(np.float64)


def sequential(node: Node, form: Form, build: Build, *, split: bool) -> tuple[F64, F64]:
    """Key by key; one token's cache of 512 cells and more may be cut in pieces that are merged."""
    s, r_s, on = scores(node, form, build)
    heads, tokens, cells = s.shape
    v = node.wide(2)[0]
    v = np.repeat(v, heads // len(v), axis=0)
    narrow = node.source(2).type == "F16"
    edges = FlashMirror(build.n_threads, cells).pieces(tokens, cells) if split else (0, cells)
    whole = None
    for part in pairwise(edges):
        state = Running.empty((heads, tokens, 1), v.shape[-1], narrow)
        for cell in range(*part):
            at = (slice(None), slice(None), slice(cell, cell + 1))
            if on[at].any():
                state.add(s[at], r_s[at], on[at], v[:, None, cell])
        if form.sinks is not None and part[0] == 0:
            state.sink(form.sinks[:, None, None])
        whole = state if whole is None else whole.merged(state)
    assert whole is not None
    seen = whole.total != 0  # NaN as well: it must show
    value = np.where(seen, whole.y / whole.total, 0.0)
    radius = whole.r / whole.total + np.abs(value) * (whole.r_total / whole.total + 4 * U)
    radius = np.where(seen, radius, 0.0)
    return value.transpose(1, 0, 2)[None], radius.transpose(1, 0, 2)[None]


def scores(node: Node, form: Form, build: Build) -> tuple[F64, F64, NDArray[np.bool_]]:
    """(heads, tokens, cells): each score, its radius, and where it is not hidden."""
    dot, off = dots(node, build)
    scale = form.scale
    if form.softcap:  # which ggml takes into the factor
        scale = float(np.float32(scale) / np.float32(form.softcap))
    s = dot * scale
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
    """Queries, converted to what the keys' type is multiplied by, times keys."""
    keys, q = node.source(1), node.wide(0)[0]
    group = len(q) // keys.ne[2]
    if keys.type not in PLAIN:
        parts = [
            multiplied(np.ascontiguousarray(x, np.float32), matrix(keys, 0, head // group), build)
            for head, x in enumerate(q)
        ]
        return np.stack([value for value, _, _ in parts]), np.stack([off for _, off, _ in parts])
    q = halves(q) if keys.type == "F16" else q
    k = np.repeat(node.wide(1)[0], group, axis=0).transpose(0, 2, 1)
    size = build.multiply(np.abs(q), np.abs(k))
    return build.multiply(q, k), (q.shape[-1] // 4 + LANES_UP) * U * size
