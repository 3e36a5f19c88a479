"""Compiled float32 loops for `fast`, except products.

The range of outputs to compute is the last argument, so that threads can share the work. No result
depends on how the work is shared, or on which rows are computed together.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.dots import stored_at, total
from lockstep.engine.kernels.lanes import floats_at, spread, store
from lockstep.engine.kernels.stamped import kernel
from lockstep.engine.quants.base import F32

Kept = NDArray[Any]
LANES = 16
ZERO = np.float32(0)
ONE = np.float32(1)
# Constants of exp: 1 / log(2); log(2) in two parts, whose first has exact products with integers; a
# number that is so large that a sum with it has no fraction. Beyond MOST, the result is infinite or
# zero.
LOG2E, HIGH, LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
MAGIC, MAGIC_BITS, MOST = np.float32(1.5 * 2**23), np.int32(0x4B400000), np.float32(104)


@kernel
def exp(x: Any) -> Any:
    """Compute exp to within an ulp, without branches or calls, so that loops can be vectorised. The
    polynomial is that of Cephes' expf (Moshier), for |r| up to log(2) / 2.
    """
    x = MOST if x > MOST else (-MOST if x < -MOST else x)  # False for NaN in both comparisons
    shifted = np.float32(x * LOG2E + MAGIC)
    n, whole = np.int32(shifted.view(np.int32) - MAGIC_BITS), shifted - MAGIC
    r = (x - whole * HIGH) - whole * LOW
    y = np.float32(1.9875691500e-4)
    y = y * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * (r * r) + r + ONE
    # half of n at a time, so that the result may overflow, or become subnormal
    first = np.int32(n >> 1)
    return y * power_of_two(first) * power_of_two(np.int32(n - first))


@kernel
def power_of_two(n: Any) -> Any:
    return np.int32((n + np.int32(127)) << 23).view(np.float32)


# --- row by row -----------------------------------------------------------------------------


@kernel
def rms_norm(x: F32, weight: F32, eps: Any, out: F32, start: int, stop: int) -> None:
    """Compute RMS norm: squares in float32, their sum in float64, as in ggml, but in eight partial
    sums."""
    whole = x.shape[1] // 8 * 8
    for t in range(start, stop):
        sums = np.zeros(8)
        for i in range(0, whole, 8):
            for j in range(8):
                sums[j] += np.float64(x[t, i + j] * x[t, i + j])
        for i in range(whole, x.shape[1]):
            sums[i - whole] += np.float64(x[t, i] * x[t, i])
        mean = np.float32(sums.sum() / x.shape[1])
        scale = ONE / np.sqrt(mean + eps)
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] * scale * weight[i]


@kernel
def rope(x: F32, cos: F32, sin: F32, halves: bool, out: F32, start: int, stop: int) -> None:
    """Rotate pairs of elements. x: (tokens, heads, dim); cos, sin: (tokens, pairs). Pairs are at
    the start of each head: adjacent elements, or (`halves`) all first elements before all second
    elements.
    """
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
    """Compute SwiGLU on flat arrays."""
    g, u, to = gate[start:stop], up[start:stop], out[start:stop]
    for i in range(len(to)):
        to[i] = g[i] / (ONE + exp(-g[i])) * u[i]


# --- attention, head by head: k and v are (cells, kv_heads, dim), F32 or the bits of F16 ----------


@kernel
def kq(q: F32, k: Kept, out: F32, start: int, stop: int) -> None:
    """Write the scores. q: (tokens, heads, dim) -> out: (heads, tokens, cells)"""
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
    """Write the softmax of each visible row. x: (heads, tokens, cells), visible: (tokens, cells); a
    row without visible cells becomes zeros."""
    for h in range(start, stop):
        for t in range(x.shape[1]):
            row, seen, to = x[h, t], visible[t], out[h, t]
            top = np.float32(-np.inf)
            for c in range(len(row)):
                if seen[c]:
                    top = max(top, row[c] * scale)
            for c in range(len(row)):
                power = exp(row[c] * scale - top)
                to[c] = power if seen[c] else ZERO
            total = 0.0
            for c in range(len(row)):
                total += np.float64(to[c])
            by = np.float32(1.0 / total) if total != 0.0 else ZERO
            for c in range(len(row)):
                to[c] *= by


@kernel
def kqv(p: F32, v: Kept, out: F32, start: int, stop: int) -> None:
    """Write the weighted sums of the values. p: (heads, tokens, cells) -> out: (tokens, heads,
    dim)."""
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


@kernel
def attend(
    q: F32, k: Kept, v: Kept, scale: Any, visible: NDArray[np.bool_], room: F32, out: F32,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Compute scores, softmax and weighted values in one call; room: (2, heads, tokens, cells), for
    intermediate results."""
    kq(q, k, room[0], start, stop)
    soft_max(room[0], scale, visible, room[1], start, stop)
    kqv(room[1], v, out, start, stop)
