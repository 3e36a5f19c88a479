"""llama.cpp's CPU flash attention, rounding by rounding, with a running error bound.

There are three paths (ggml_compute_forward_flash_attn_ext_f16, llama.cpp of llama-cpp-python
0.3.36): one key at a time with an F16 accumulator; one key at a time in pieces of the cache that
are merged (one token, at least 512 cells); tiles of 64 queries in float32 (64 tokens or more).

An F16 accumulator can turn a difference of one part in ten million into a whole half-precision
step. This happens only if the value before rounding lay that close to the middle between two
halves. So the mirror keeps a radius for each accumulator: an honest implementation's value lies
within that radius. The radius becomes zero again if both ends of the interval round to the same
half.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel
from lockstep.engine.ops.functions import STAMP, one_exp

kernel = partial(compile_kernel, stamp=STAMP)  # `one_exp` is part of the compiled code
TILE = 64  # GGML_FA_TILE_Q and GGML_FA_TILE_KV
SPLIT_KV = 512  # number of cells from which threads share one token's attention
U = np.float64(2.0**-24)  # unit roundoff of float32
DIGITS, BIAS = np.int64(52), np.int64(1023)  # parts of a float64's bits
HALF_MORE = np.int64(1 << 51)  # first digit of the significand, for 1.5
NO_SINK = np.full(1, np.nan)
# F16 numbers that AVX512-FP16 computes at once (GGML_F16_STEP); the remainder is in float32
STEP = 128
U64 = np.float64(2.0**-53)  # unit roundoff of float64
LANES_UP = 7  # rounds of the tree that adds partial sums; at least four partial sums remain


@dataclass(frozen=True)
class FlashMirror:
    n_threads: int
    n_ctx: int

    def n_kv(self, n_cells: int) -> int:
        """Return the number of cells that are read, padded to 256 (get_n_kv in
        llama-kv-cache.cpp)."""
        return min(self.n_ctx, max(256, -(-n_cells // 256) * 256))

    def pieces(self, n_tokens: int, n_cells: int) -> NDArray[np.int64]:
        """Return the indices at which the cache is cut into pieces."""
        n_kv = self.n_kv(n_cells)
        if n_tokens > 1 or n_kv < SPLIT_KV:
            return np.array([0, n_cells])
        size = -(-n_kv // self.n_threads)
        cuts = range(0, n_kv + size, size)
        return np.array([min(cut, n_cells) for cut in cuts])


@kernel
def to_half(x: float) -> float:
    """Return the nearest half, ties to even; infinity from 65520 on.

    The code adds and subtracts a number so large that its last bit is the last bit of the half.
    """
    size = abs(x)
    exponent = np.float64(size).view(np.int64) >> DIGITS
    # the limits are subnormal F16 numbers, and numbers beyond F16
    exponent = min(max(exponent, BIAS - 14), BIAS + 16)
    large = np.int64(((exponent + DIGITS - 10) << DIGITS) | HALF_MORE).view(np.float64)
    rounded = (size + large) - large
    return float(np.copysign(np.inf if rounded >= 65536.0 else rounded, x))


@kernel
def settle(z: float, radius: float) -> tuple[float, float]:
    """Round to half precision. The remaining radius is zero if the whole interval rounds to one
    value."""
    y = to_half(z)
    left = max(abs(to_half(z + radius) - y), abs(y - to_half(z - radius)))
    return y, left if abs(y) < np.inf else 0.0


@kernel
def one_by_one(
    s: NDArray[Any],
    r_s: NDArray[Any],
    on: NDArray[Any],
    v: NDArray[Any],
    edges: NDArray[Any],
    narrow: bool,
    sinks: NDArray[Any],
    whole: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the result of the sequential paths, (tokens, heads, dim of values), and its radius.

    s, r_s, on: (tokens, heads, cells): the scores, their radii, and a mask of visible cells; v:
    (kv_heads, cells, dim); `edges` cuts the cells into pieces that are merged at the end; sinks: a
    score without a value for each head, or one NaN; narrow: the accumulator holds halves; whole:
    the number of first elements of a value that are computed in half arithmetic, if narrow.
    """
    n, heads, _ = s.shape
    dim = v.shape[2]
    group = heads // v.shape[0]
    out = np.zeros((n, heads, dim), np.float64)
    radius = np.zeros((n, heads, dim), np.float64)
    for t in range(n):
        for h in range(heads):
            total, r_total, top, r_top = 0.0, 0.0, -np.inf, 0.0
            acc = np.zeros(dim)
            r_acc = np.zeros(dim)
            for piece in range(len(edges) - 1):
                sink = sinks[h % len(sinks)] if piece == 0 else np.nan
                y, r, s_sum, r_sum, m, r_m = piece_of(
                    s[t, h], r_s[t, h], on[t, h], v[h // group],
                    edges[piece], edges[piece + 1], narrow, sink, whole,
                )  # fmt: skip
                if s_sum == 0.0:
                    continue
                new = max(top, m)
                # the power of zero is one in every run, or both sums share its error
                old_by, r_old = power_of(new - top, r_top + r_m) if top < new else (1.0, 0.0)
                new_by, r_new = power_of(new - m, r_top + r_m) if m < new else (1.0, 0.0)
                # rounding errors of a product and of the sum
                slack = 2.0 * U if total != 0.0 else 0.0
                for d in range(dim):
                    wide = (abs(acc[d]) + r_acc[d]) * r_old + (abs(y[d]) + r[d]) * r_new
                    wide += r_acc[d] * old_by + r[d] * new_by
                    size = abs(acc[d]) * old_by + abs(y[d]) * new_by
                    acc[d] = acc[d] * old_by + y[d] * new_by
                    r_acc[d] = wide + slack * (size + wide)
                wide = (total + r_total) * r_old + (s_sum + r_sum) * r_new
                wide += r_total * old_by + r_sum * new_by
                total = total * old_by + s_sum * new_by
                r_total = wide + slack * (total + wide)
                if m >= top:
                    r_top = r_m
                top = new
            for d in range(dim):
                if total != 0.0:  # True for NaN too, so that NaN is visible
                    value = acc[d] / total
                    wide = r_acc[d] + abs(value) * r_total
                    wide = np.inf if r_total >= total else wide / (total - r_total)
                    out[t, h, d] = value
                    radius[t, h, d] = wide + 4.0 * U * (abs(value) + wide)
    return out, radius


@kernel
def piece_of(
    s: NDArray[Any],
    r_s: NDArray[Any],
    on: NDArray[Any],
    v: NDArray[Any],
    start: int,
    stop: int,
    narrow: bool,
    sink: float,
    whole: int,
) -> tuple[NDArray[Any], NDArray[Any], float, float, float, float]:
    """Return the unnormalised sum of values, the sum of weights and the largest score, each with
    its radius."""
    dim = v.shape[1]
    y = np.zeros(dim)
    r = np.zeros(dim)
    s_sum, r_sum, top, r_top = 0.0, 0.0, -np.inf, 0.0
    for c in range(start, stop + 1):
        sinks = c == stop  # sinks come after the keys, in float32, and may be the new maximum
        if np.isnan(sink) if sinks else not on[c]:
            continue
        here, r_here = (sink, 0.0) if sinks else (s[c], r_s[c])
        half = narrow and not sinks
        first = whole if half else 0
        vs, r_vs = 1.0, 0.0
        if here > top:
            ms, r_ms = power_of(here - top, r_here + r_top)
            top, r_top = here, r_here
            scale_halves(y[:first], r[:first], ms, r_ms)
            scale_row(y[first:], r[first:], ms, r_ms, half)
            r_sum = r_sum * ms + (s_sum + r_sum) * r_ms
            s_sum = s_sum * ms
            r_sum += U * (s_sum + r_sum)
        else:
            vs, r_vs = power_of(top - here, r_here + r_top)
        if not sinks:
            add_halves(y[:first], r[:first], v[c, :first], vs, r_vs)
            add_row(y[first:], r[first:], v[c, first:], vs, r_vs, half)
        s_sum += vs
        r_sum += r_vs
        r_sum += U * (s_sum + r_sum)
    return y, r, s_sum, r_sum, top, r_top


@kernel
def scale_row(y: NDArray[Any], r: NDArray[Any], by: float, r_by: float, half: bool) -> None:
    for d in range(len(y)):
        z = y[d] * by
        wide = r[d] * by + (abs(y[d]) + r[d]) * r_by
        wide += U * (abs(z) + wide)
        y[d], r[d] = settle(z, wide) if half else (z, wide)


@kernel
def add_row(
    y: NDArray[Any], r: NDArray[Any], v: NDArray[Any], by: float, r_by: float, half: bool
) -> None:
    for d in range(len(y)):
        value = np.float64(v[d])
        term = value * by
        z = y[d] + term
        off = abs(value) * r_by
        wide = r[d] + off
        if term != 0.0:  # zeros are not rounded
            wide += U * (abs(term) + off) + U * (abs(z) + wide)
        y[d], r[d] = settle(z, wide) if half else (z, wide)


@kernel
def scale_halves(y: NDArray[Any], r: NDArray[Any], by: float, r_by: float) -> None:
    """Multiply y by `by` and round to the nearest half; a product of two halves is one float64."""
    by, r_by = settle(by, r_by)
    for d in range(len(y)):
        y[d], r[d] = settle(y[d] * by, r[d] * by + (abs(y[d]) + r[d]) * r_by)


@kernel
def add_halves(y: NDArray[Any], r: NDArray[Any], v: NDArray[Any], by: float, r_by: float) -> None:
    """Add halves, rounded once (fused). The sum in float64 may lack the last bits of the
    product."""
    by, r_by = settle(by, r_by)
    for d in range(len(y)):
        value = np.float64(v[d])
        z = y[d] + value * by
        y[d], r[d] = settle(z, r[d] + abs(value) * r_by + U64 * abs(z))


@kernel
def power_of(apart: float, r: float) -> tuple[float, float]:
    """Return expf(-apart) and its error; r: the error of `apart`, the difference of two scores. The
    difference is rounded once, and expf is good to one unit in the last place.
    """
    power = np.float64(np.float32(one_exp(-apart)))
    return power, power * (r + U * apart + 2.0 * U) if power > 0.0 else 0.0
