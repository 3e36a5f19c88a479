"""Compiled loops for `fast` besides products: float32 arithmetic.

The range of outputs to compute comes last, so that threads can share the work: no result depends
on how it is shared, nor on which rows are computed together.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.dots import stored_at, total
from lockstep.engine.kernels.lanes import floats_at, spread, store
from lockstep.engine.ops.fast.compiling import kernel
from lockstep.engine.quants.base import F32

Kept = NDArray[Any]
LANES = 16
ZERO = np.float32(0)
ONE = np.float32(1)


# --- row by row -----------------------------------------------------------------------------


@kernel
def rms_norm(x: F32, weight: F32, eps: Any, out: F32, start: int, stop: int) -> None:
    """Squares in float32, their sum in float64, as ggml has it."""
    for t in range(start, stop):
        total = 0.0
        for i in range(x.shape[1]):
            total += np.float64(x[t, i] * x[t, i])
        mean = np.float32(total / x.shape[1])
        scale = ONE / np.sqrt(mean + eps)
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] * scale * weight[i]


@kernel
def rope(x: F32, cos: F32, sin: F32, halves: bool, out: F32, start: int, stop: int) -> None:
    """x: (tokens, heads, dim); cos, sin: (tokens, pairs), of the first elements of each head: two
    side by side, or (`halves`) all first ones before all second ones."""
    pairs = cos.shape[1]
    step, gap = (1, pairs) if halves else (2, 1)
    for t in range(start, stop):
        for h in range(x.shape[1]):
            for i in range(pairs):
                a, b = x[t, h, step * i], x[t, h, step * i + gap]
                out[t, h, step * i] = a * cos[t, i] - b * sin[t, i]
                out[t, h, step * i + gap] = a * sin[t, i] + b * cos[t, i]
            for i in range(2 * pairs, x.shape[2]):
                out[t, h, i] = x[t, h, i]


@kernel
def swiglu(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
    """All flat."""
    for i in range(start, stop):
        out[i] = gate[i] / (ONE + np.exp(-gate[i])) * up[i]


# --- attention, head by head: k and v are (cells, kv_heads, dim), F32 or the bits of F16 ----------


@kernel
def kq(q: F32, k: Kept, out: F32, start: int, stop: int) -> None:
    """q: (tokens, heads, dim) -> out: (heads, tokens, cells)"""
    tokens, heads, dim = q.shape
    group, whole = heads // k.shape[1], dim // LANES * LANES
    q_, k_, out_ = q.reshape(-1), k.reshape(-1), out.reshape(-1)
    for h in range(start, stop):
        for c in range(k.shape[0]):
            at = (c * k.shape[1] + h // group) * dim
            for t in range(tokens):
                sums, mine = spread(ZERO, 16), (t * heads + h) * dim
                for i in range(0, whole, LANES):
                    sums = sums + floats_at(q_, mine + i, 16) * stored_at(k_, at + i, 16)
                s = total(sums)
                for i in range(whole, dim):
                    s += q_[mine + i] * stored_at(k_, at + i, 1)[0]
                out_[(h * tokens + t) * k.shape[0] + c] = s


@kernel
def soft_max(
    x: F32, scale: Any, visible: NDArray[np.bool_], out: F32, start: int, stop: int
) -> None:
    """x: (heads, tokens, cells), visible: (tokens, cells); a row that sees nothing is zeros."""
    for h in range(start, stop):
        for t in range(x.shape[1]):
            top = np.float32(-np.inf)
            for c in range(x.shape[2]):
                if visible[t, c]:
                    top = max(top, x[h, t, c] * scale)
            total = 0.0
            for c in range(x.shape[2]):
                power = np.exp(x[h, t, c] * scale - top) if visible[t, c] else ZERO
                out[h, t, c] = power
                total += np.float64(power)
            by = np.float32(1.0 / total) if total != 0.0 else ZERO
            for c in range(x.shape[2]):
                out[h, t, c] *= by


@kernel
def kqv(p: F32, v: Kept, out: F32, start: int, stop: int) -> None:
    """p: (heads, tokens, cells) -> out: (tokens, heads, dim)."""
    heads, tokens, cells = p.shape
    kv_heads, dim = v.shape[1:]
    group, whole, apart = heads // kv_heads, dim // LANES * LANES, kv_heads * dim
    p_, v_, out_ = p.reshape(-1), v.reshape(-1), out.reshape(-1)
    for h in range(start, stop):
        for t in range(tokens):
            first, mine, to = h // group * dim, (h * tokens + t) * cells, (t * heads + h) * dim
            for d in range(0, whole, LANES):
                sums = spread(ZERO, 16)
                for c in range(cells):
                    sums = sums + p_[mine + c] * stored_at(v_, first + c * apart + d, 16)
                store(out_, to + d, sums)
            for d in range(whole, dim):
                s = ZERO
                for c in range(cells):
                    s += p_[mine + c] * stored_at(v_, first + c * apart + d, 1)[0]
                out_[to + d] = s
