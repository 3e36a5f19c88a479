"""Compiled loops for `fast`: float32 arithmetic, every sum in the order of its terms.

All kernels are in this file because numba's cache notices a change in a kernel's own file only.
The range of outputs to compute comes last, so that threads can share the work: no result depends
on how it is shared, nor on which rows are computed together.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compiled
from lockstep.engine.quants.base import F32

kernel = partial(compiled, nogil=True)

AT_ONCE = (
    8  # outputs whose sums are carried side by side, so that they need not wait for each other
)

ZERO = np.float32(0)
ONE = np.float32(1)



@kernel
def dot(x: F32, w: F32) -> Any:
    s = ZERO
    for i in range(len(x)):
        s += x[i] * w[i]
    return s


@kernel
def dots(x: F32, w: F32, out: F32, at: int) -> None:
    """out[at : at + 8] = w (8 rows) @ x"""
    a = b = c = d = e = f = g = h = ZERO
    for i in range(len(x)):
        y = x[i]
        a += y * w[0, i]
        b += y * w[1, i]
        c += y * w[2, i]
        d += y * w[3, i]
        e += y * w[4, i]
        f += y * w[5, i]
        g += y * w[6, i]
        h += y * w[7, i]
    out[at], out[at + 1], out[at + 2], out[at + 3] = a, b, c, d
    out[at + 4], out[at + 5], out[at + 6], out[at + 7] = e, f, g, h


@kernel
def products(x: F32, w: F32, out: F32, start: int, stop: int) -> None:
    """w: (outputs, inputs)"""
    for r in range(start, stop, AT_ONCE):
        whole = r + AT_ONCE <= stop
        for t in range(len(x)):
            if whole:
                dots(x[t], w[r : r + AT_ONCE], out[t], r)
            else:
                for last in range(r, stop):
                    out[t, last] = dot(x[t], w[last])


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
def rope(x: F32, cos: F32, sin: F32, out: F32, start: int, stop: int) -> None:
    """x: (tokens, heads, dim); cos, sin: (tokens, dim / 2)"""
    for t in range(start, stop):
        for h in range(x.shape[1]):
            for i in range(cos.shape[1]):
                even, odd = x[t, h, 2 * i], x[t, h, 2 * i + 1]
                out[t, h, 2 * i] = even * cos[t, i] - odd * sin[t, i]
                out[t, h, 2 * i + 1] = even * sin[t, i] + odd * cos[t, i]


@kernel
def swiglu(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
    """All flat."""
    for i in range(start, stop):
        out[i] = gate[i] / (ONE + np.exp(-gate[i])) * up[i]


# --- attention, head by head: k and v are (kv_heads, cells, dim) ------------------------------


@kernel
def kq(q: F32, k: F32, out: F32, start: int, stop: int) -> None:
    """q: (heads, tokens, dim) -> out: (heads, tokens, cells)"""
    group = len(q) // len(k)
    for h in range(start, stop):
        products(q[h], k[h // group], out[h], 0, k.shape[1])


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
def kqv(p: F32, v: F32, out: F32, start: int, stop: int) -> None:
    """p: (heads, tokens, cells) -> out: (tokens, heads, dim)"""
    group = len(p) // len(v)
    for h in range(start, stop):
        for t in range(p.shape[1]):
            acc = out[t, h]
            acc[:] = ZERO
            for c in range(p.shape[2]):
                for d in range(v.shape[2]):
                    acc[d] += p[h, t, c] * v[h // group, c, d]
