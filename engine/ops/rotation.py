"""Rotary positions: rotation of pairs of elements. Callers supply the angles.

Source: ggml_compute_forward_rope_flt in ggml-cpu/ops.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel
from lockstep.engine.ops import functions
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import F64, LIBM_ULP, ULP, Near, Number, U, because, value_of
from lockstep.engine.quants.base import F32

I32 = NDArray[np.int32]
POW = 2  # error of powf in U: one ulp by glibc's manual, which is one or two U
REASON = "cosine, sine, two products and their sum (the angle's own float32 recursion is mirrored)"


@dataclass(frozen=True, eq=False)
class RopeParams:
    """Rotation angles by position: position * scale * base^(-2i / n_rot) / factors[i].

    With YaRN, the share `kept[i]` of a pair's angle is not scaled, and rotated values are
    multiplied by `magnitude`.
    """

    n_rot: int
    base: float
    scale: float
    factors: F32 | None  # (n_rot / 2,)
    halves: bool = False  # True: pairs are half a rotation apart instead of adjacent
    kept: F32 | None = None  # (n_rot / 2,)
    magnitude: float = 1.0

    def turns_as(self, other: "RopeParams") -> bool:
        """Return True if both rotate by the same angles."""
        mine, theirs = ((p.n_rot, p.base, p.scale, p.magnitude) for p in (self, other))
        return (
            mine == theirs and alike(self.factors, other.factors) and alike(self.kept, other.kept)
        )

    def pairs(self) -> tuple[slice, slice]:
        """Return the indices in a head of the first and of the second elements of all pairs."""
        if self.halves:
            return slice(0, self.n_rot // 2), slice(self.n_rot // 2, self.n_rot)
        return slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)


def alike(a: F32 | None, b: F32 | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


# returns cosines and sines: (tokens, n_rot / 2)
Rotations = Callable[[I32, RopeParams], tuple[F64, F64]]


def rope(x: F32, positions: I32, params: RopeParams, rotations: Rotations, build: Build) -> Number:
    """Rotate the first `n_rot` elements of each head. x: (tokens, heads, dim)."""
    found = (t[:, None, :] for t in rotations(positions, params))
    cos, sin = (from_library(t, positions, params) if build.bounds else t for t in found)
    return because(rotate(build.number(x), cos, sin, *params.pairs()), REASON)


def from_library(v: F64, positions: I32, params: RopeParams, *, any_way: bool = False) -> Near:
    """Return v with the bound of the C library's sine or cosine. v: sines or cosines times the
    magnitude, (tokens, 1, pairs)."""
    ulps = LIBM_ULP * ULP + (U if params.magnitude != 1 else 0.0)
    return Near(v, ulps * np.abs(v) + yarn_slack(positions, params, any_way=any_way))


def yarn_slack(positions: I32, params: RopeParams, *, any_way: bool) -> F64 | float:
    """Return the error of cosines and sines if YaRN mixes two angles, (tokens, 1, pairs).

    For a pair inside the ramp, float32 rounds the scaled angle, the complement, two products and
    their sum; a compiler may fuse some of them. For the magnitude, float32 rounds two logarithms, a
    sum, a quotient and three products. any_way: also adds the roundings of the mixed frequencies: a
    power, and the quotients before and after.
    """
    if params.kept is None:
        return 0.0
    kept = params.kept.astype(np.float64)
    each = positions.astype(np.float64)[:, None] * frequencies(params)
    mixed = np.where((kept > 0) & (kept < 1) | any_way, 5 + (POW + 4) * any_way, 0)
    turns: F64 = np.abs(each) * (1 + abs(params.scale)) * mixed * U
    return (abs(params.magnitude) * (turns + 10 * U))[:, None, :]


def rotate(x: Number, cos: Number, sin: Number, first: Any, second: Any) -> Number:
    """Rotate pairs of each row; all other elements stay. first, second: indices of the pairs'
    elements."""
    a, b = x[..., first], x[..., second]
    v = value_of(x).copy()
    parts = (first, a * cos - b * sin), (second, a * sin + b * cos)
    for at, part in parts:
        v[..., at] = value_of(part)
    if not isinstance(x, Near):
        return v
    r, copied = np.broadcast_to(np.asarray(x.r), v.shape).copy(), np.ones(v.shape, bool)
    for at, part in parts:
        assert isinstance(part, Near)
        r[..., at], copied[..., at] = part.r, False
    return Near(v, r, copied=copied)


# --- angles -------------------------------------------------------------------------------------


def frequencies(params: RopeParams) -> F64:
    """Return unscaled frequencies: (n_rot / 2,)."""
    exponents = -np.arange(0, params.n_rot, 2) / params.n_rot
    found: F64 = params.base**exponents
    return found if params.factors is None else found / params.factors


def from_powers(positions: I32, params: RopeParams) -> tuple[F64, F64]:
    """Compute the rotations in float64, by the definition of `RopeParams`."""
    kept = 0.0 if params.kept is None else params.kept.astype(np.float64)
    angles = positions[:, None] * frequencies(params) * (params.scale * (1 - kept) + kept)
    return np.cos(angles) * params.magnitude, np.sin(angles) * params.magnitude


def by_recursion(positions: I32, params: RopeParams) -> tuple[F64, F64]:
    """Return the cosines and sines of angles that are multiplied from pair to pair in float32, as
    in ggml."""
    base, scale = np.float32(params.base), np.float32(params.scale)
    whole = recursion(positions.astype(np.float32), params.n_rot, base, params.n_rot // 2)
    whole = whole if params.factors is None else whole / params.factors
    angles = whole * scale
    if params.kept is not None:
        mixed = angles * (np.float32(1) - params.kept) + whole * params.kept
        angles = np.where(params.kept != 0, mixed, angles)
    wide, magnitude = angles.astype(np.float64), float(np.float32(params.magnitude))
    return functions.cos(wide) * magnitude, functions.sin(wide) * magnitude


@compile_kernel
def recursion(positions: F32, n_rot: int, base: np.float32, pairs: int) -> F32:
    """Return angles (tokens, pairs) as ggml_rope_cache_init computes them, with the C library's
    powf.
    """
    out = np.empty((len(positions), pairs), np.float32)
    step = base ** np.float32(np.float32(-2.0) / np.float32(n_rot))
    for t in range(len(positions)):
        theta = positions[t]
        for i in range(pairs):
            out[t, i] = theta
            theta = np.float32(theta * step)
    return out
