"""Rotary positions: how a pair of elements turns. Where angles come from is their callers' part.

Source: ggml_compute_forward_rope_flt in ggml-cpu/ops.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.kernels import compiled
from engine.ops import functions
from engine.ops.build import Build
from engine.ops.near import F64, LIBM_ULP, ULP, Near, Number, because, value_of
from engine.quants.base import F32

I32 = NDArray[np.int32]
REASON = "cosine, sine, two products and their sum (the angle's own float32 recursion is mirrored)"


@dataclass(frozen=True, eq=False)
class RopeParams:
    """How positions become angles: position * scale * base^(-2i / n_rot) / factors[i]."""

    n_rot: int
    base: float
    scale: float
    factors: F32 | None  # (n_rot / 2,)
    halves: bool = False  # pairs lie half a rotation apart, not side by side

    def pairs(self) -> tuple[slice, slice]:
        """Where in a head the first element of every pair lies, and where the second."""
        if self.halves:
            return slice(0, self.n_rot // 2), slice(self.n_rot // 2, self.n_rot)
        return slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)


Rotations = Callable[[I32, RopeParams], tuple[F64, F64]]  # cosines and sines: (tokens, n_rot / 2)


def rope(x: F32, positions: I32, params: RopeParams, rotations: Rotations, build: Build) -> Number:
    """x: (tokens, heads, dim), the first `n_rot` elements of each head are turned."""
    cos, sin = (from_library(t[:, None, :], build) for t in rotations(positions, params))
    return because(turned(build.number(x), cos, sin, *params.pairs()), REASON)


def from_library(v: F64, build: Build) -> Number:
    """What a function of the C library gives."""
    return Near(v, LIBM_ULP * ULP * np.abs(v)) if build.bounds else v


def turned(x: Number, cos: Number, sin: Number, first: Any, second: Any) -> Number:
    """first, second: where in a row the elements of each pair lie; all others stay."""
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


def from_powers(positions: I32, params: RopeParams) -> tuple[F64, F64]:
    """By the definition of `RopeParams`, in float64."""
    exponents = -np.arange(0, params.n_rot, 2) / params.n_rot
    angles = positions[:, None] * params.base**exponents
    if params.factors is not None:
        angles = angles / params.factors
    angles = angles * params.scale
    return np.cos(angles), np.sin(angles)


def by_recursion(positions: I32, params: RopeParams) -> tuple[F64, F64]:
    """ggml multiplies the angle up pair by pair in float32, and scales it then."""
    base, scale = np.float32(params.base), np.float32(params.scale)
    angles = recursion(positions.astype(np.float32), params.n_rot, base, params.n_rot // 2)
    if params.factors is not None:
        angles = angles / params.factors
    angles = (angles * scale).astype(np.float64)
    return functions.cos(angles), functions.sin(angles)


@compiled
def recursion(positions: F32, n_rot: int, base: np.float32, pairs: int) -> F32:
    """(tokens, pairs), as in ggml_rope_cache_init; powf is the C library's."""
    out = np.empty((len(positions), pairs), np.float32)
    step = base ** np.float32(np.float32(-2.0) / np.float32(n_rot))
    for t in range(len(positions)):
        theta = positions[t]
        for i in range(pairs):
            out[t, i] = theta
            theta = np.float32(theta * step)
    return out
