"""Numerics as written on paper: float64 inside, one rounding to float32 on the way out.

Shapes are numpy's, slowest first. A weight matrix is (outputs, inputs), as it lies in a GGUF file.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops import functions
from engine.ops.ggml import gated
from engine.ops.ggml.attention import attended
from engine.quants.base import F32
from engine.weights import Weight

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]

# ggml clamps the sum of the chosen experts' weights to the smallest normal half (llama-graph.cpp)
OAI_ALPHA = float(np.float32(1.702))
MOE_SUM_MIN = 6.103515625e-5


@dataclass(frozen=True, eq=False)
class RopeParams:
    """How positions become angles: position * scale * base^(-2i / n_rot) / factors[i].

    With YaRN a share `kept[i]` of each pair is not scaled, and what is turned grows.
    """

    n_rot: int
    base: float
    scale: float
    factors: F32 | None  # (n_rot / 2,)
    halves: bool = False  # pairs lie half a rotation apart, not side by side
    kept: F32 | None = None  # (n_rot / 2,)
    magnitude: float = 1.0

    def pairs(self) -> tuple[slice, slice]:
        """Where in a head the first element of every pair lies, and where the second."""
        if self.halves:
            return slice(0, self.n_rot // 2), slice(self.n_rot // 2, self.n_rot)
        return slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)


class Reference:
    """The meaning of every op."""

    # --- embeddings and norms -------------------------------------------------------------

    def get_rows(self, weight: Weight, ids: I32) -> F32:
        """-> (ids, columns)"""
        return weight.take(ids)

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        """x: (tokens, width) -> same shape, each row scaled to unit mean square, times weight."""
        wide = x.astype(np.float64)
        scale = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return rounded(wide * scale * weight)

    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        """x: (tokens, width), each row with mean zero and variance one; times weight, plus bias."""
        wide = x.astype(np.float64)
        off = wide - wide.mean(axis=-1, keepdims=True)
        scale = 1 / np.sqrt(np.mean(off * off, axis=-1, keepdims=True) + eps)
        return rounded(off * scale * weight + bias)

    # --- products with weights ------------------------------------------------------------

    def activations(self, x: F32, weight: Weight) -> F64:
        """The activations as the product sees them: here, as they are."""
        return x.astype(np.float64)

    def linear(self, x: F32, weight: Weight) -> F32:
        """x: (tokens, inputs), weight: (outputs, inputs) -> (tokens, outputs)."""
        wide = self.activations(x, weight)
        out = np.empty((len(x), weight.shape[0]), np.float32)
        for rows, chunk in weight.chunks():
            with np.errstate(invalid="ignore"):  # converted activations may be infinite
                out[:, rows] = rounded(wide @ chunk.astype(np.float64).T)
        return out

    def linear_id(self, x: F32, weight: Weight, ids: I32) -> F32:
        """x: (tokens, used or 1, inputs), weight: (experts, outputs, inputs), ids: (tokens, used)
        -> (tokens, used, outputs): each row times the matrix of the expert chosen for it."""
        out = np.empty((*ids.shape, weight.shape[1]), np.float32)
        rows = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
        for expert in np.unique(ids):
            chosen = ids == expert
            out[chosen] = self.linear(rows[chosen], weight.part(int(expert)))
        return out

    # --- positions ------------------------------------------------------------------------

    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        """Cosine and sine of every pair's angle: (tokens, n_rot / 2) each."""
        exponents = -np.arange(0, params.n_rot, 2) / params.n_rot
        angles = positions[:, None] * params.base**exponents
        if params.factors is not None:
            angles = angles / params.factors
        kept = 0.0 if params.kept is None else params.kept.astype(np.float64)
        angles = angles * (params.scale * (1 - kept) + kept)
        return np.cos(angles) * params.magnitude, np.sin(angles) * params.magnitude

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        """Rotate pairs of each head; x: (tokens, heads, dim). The first `n_rot` elements turn:
        (0, 1), (2, 3), ..., or (0, n_rot / 2), (1, n_rot / 2 + 1), ..."""
        cos, sin = (t[:, None, :] for t in self.rotations(positions, params))
        out = x.copy()
        one, other = params.pairs()
        a, b = x[..., one].astype(np.float64), x[..., other].astype(np.float64)
        out[..., one] = rounded(a * cos - b * sin)
        out[..., other] = rounded(a * sin + b * cos)
        return out

    # --- attention ------------------------------------------------------------------------

    def spread(self, kv: NDArray[Any], n_head: int) -> F64:
        """(cells, kv_heads, dim) -> (heads, cells, dim): each KV head serves a run of heads."""
        wide = kv.astype(np.float64).transpose(1, 0, 2)
        return np.repeat(wide, n_head // kv.shape[1], axis=0)

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        """q: (tokens, heads, dim), k: (cells, kv_heads, dim) -> (heads, tokens, cells)."""
        wide = q.astype(np.float64).transpose(1, 0, 2)
        return rounded(wide @ self.spread(k, q.shape[1]).transpose(0, 2, 1))

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        """Over the last axis of x * scale, hidden entries left out; `visible` lacks the heads.

        A row that sees nothing is all zeros.
        """
        wide = x.astype(np.float64) * scale
        if visible is not None:
            wide = np.where(visible, wide, -np.inf)
        largest = wide.max(axis=-1, keepdims=True)
        powers = np.exp(wide - np.where(np.isneginf(largest), 0, largest))
        total = powers.sum(axis=-1, keepdims=True)
        return rounded(powers / np.where(total == 0, 1, total))

    def soft_max_with_sinks(self, x: F32, scale: float, visible: Bools, sinks: F32) -> F32:
        """As of one entry more in each row, the sink of its head: (heads,). It gives nothing."""
        wide = np.where(visible, x.astype(np.float64) * scale, -np.inf)
        ends = np.broadcast_to(sinks.astype(np.float64)[:, None, None], (*wide.shape[:-1], 1))
        largest = np.maximum(wide.max(axis=-1, keepdims=True), ends)
        powers = np.exp(wide - largest)
        total = powers.sum(axis=-1, keepdims=True) + np.exp(ends - largest)
        return rounded(powers / total)

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        """p: (heads, tokens, cells), v: (cells, kv_heads, dim) -> (tokens, heads * dim)."""
        out = p.astype(np.float64) @ self.spread(v, p.shape[0])
        return rounded(out.transpose(1, 0, 2).reshape(p.shape[1], p.shape[0] * v.shape[2]))

    def flash_attn(
        self, q: F32, k: NDArray[Any], v: NDArray[Any], scale: float, visible: Bools
    ) -> F32:
        """The three ops above in one, without roundings between them -> (tokens, heads * dim)."""
        wide = q.astype(np.float64).transpose(1, 0, 2)
        scores = wide @ self.spread(k, q.shape[1]).transpose(0, 2, 1) * scale
        scores = np.where(visible, scores, -np.inf)
        largest = scores.max(axis=-1, keepdims=True)
        powers = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        total = powers.sum(axis=-1, keepdims=True)
        out = powers / np.where(total == 0, 1, total) @ self.spread(v, q.shape[1])
        return rounded(out.transpose(1, 0, 2).reshape(len(q), q.shape[1] * v.shape[2]))

    def flash_attn_ext(
        self,
        q: F32,
        k: NDArray[Any],
        v: NDArray[Any],
        scale: float,
        visible: Bools,
        cap: float = 0.0,
        sinks: F32 | None = None,
    ) -> F32:
        """As `flash_attn`; scores capped, if a cap is given, and a sink for each head. Values may
        be narrower than keys."""
        shown = np.where(visible, 0.0, -np.inf)[None]
        wide = q.astype(np.float64).transpose(1, 0, 2)
        keys, values = (self.spread(x, q.shape[1]) for x in (k, v))
        ends = None if sinks is None else sinks.astype(np.float64)[:, None, None]
        found = attended(
            wide, keys, values, shown, scale=scale, multiply=np.matmul, softcap=cap, sinks=ends
        )
        return rounded(found.v.transpose(1, 0, 2).reshape(len(q), -1))

    # --- element by element ---------------------------------------------------------------

    def add(self, a: F32, b: F32) -> F32:
        return a + b  # one rounding, in float32 as in float64

    def mul(self, a: F32, b: F32) -> F32:
        return a * b

    def swiglu(self, gate: F32, up: F32) -> F32:
        """silu(gate) * up"""
        wide = gate.astype(np.float64)
        with np.errstate(over="ignore"):  # exp(-x) may be infinite: silu is zero then
            return rounded(wide / (1 + np.exp(-wide)) * up)

    def swiglu_oai(self, gate: F32, up: F32) -> F32:
        """gate * sigmoid(1.702 * gate) * (up + 1), both clamped at 7."""
        x, y = (np.clip(t.astype(np.float64), low, 7) for t, low in ((gate, None), (up, -7)))
        return rounded(x / (1 + functions.exp(-OAI_ALPHA * x)) * (y + 1))

    def scale(self, x: F32, factor: float) -> F32:
        return x * np.float32(factor)

    def gelu(self, x: F32) -> F32:
        """By the formula with tanh, as ggml's GELU is."""
        return rounded(gated.gelu(x.astype(np.float64)))

    def geglu(self, gate: F32, up: F32) -> F32:
        """gelu(gate) * up"""
        return rounded(gated.gelu(gate.astype(np.float64)) * up)

    def sigmoid(self, x: F32) -> F32:
        return rounded(1 / (1 + functions.exp(-x.astype(np.float64))))

    def soft_cap(self, x: F32, cap: float) -> F32:
        """tanh(x / cap) * cap: nothing is larger."""
        return rounded(functions.tanh(x.astype(np.float64) / cap) * cap)

    def mean(self, x: F32) -> F32:
        """(tokens, width) -> (width,)"""
        return rounded(x.astype(np.float64).mean(axis=0))

    # --- mixture of experts ---------------------------------------------------------------

    def top_k(self, probs: F32, n: int) -> I32:
        """The ids of the `n` largest of each row, largest first; the lowest id wins a tie."""
        return np.argsort(-probs, axis=-1, kind="stable")[..., :n].astype(np.int32)

    def pick(self, probs: F32, ids: I32) -> F32:
        """probs: (tokens, experts), ids: (tokens, used) -> (tokens, used)"""
        return np.take_along_axis(probs, ids.astype(np.int64), axis=-1)

    def normalise(self, weights: F32) -> F32:
        """Each row divided by its sum."""
        wide = weights.astype(np.float64)
        return rounded(wide / np.maximum(wide.sum(axis=-1, keepdims=True), MOE_SUM_MIN))

    def sum_experts(self, x: F32) -> F32:
        """(tokens, used, width) -> (tokens, width)"""
        return rounded(x.astype(np.float64).sum(axis=1))


def rounded(wide: F64) -> F32:
    """The one rounding."""
    with np.errstate(over="ignore"):
        return wide.astype(np.float32)
