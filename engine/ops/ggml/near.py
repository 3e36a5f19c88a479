"""Numbers with the distance that an honest float32 computation may be from them.

Written with these, a formula gives the result in float64 and its bound at once: each operation adds
one rounding of its own and hands on what its arguments were off by. A compiler that fuses a product
with a sum rounds less often, so it stays inside.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.ops import functions
from engine.ops.ggml.base import F64, SMALLEST, Expected, U

# ggml's vector exp says 1.46 + 0.5 in vec.h; glibc's manual lists 1 for its float functions, 2 for
# tanhf ("Known Maximum Errors in Math Functions")
EXP_ULP, LIBM_ULP, TANH_ULP = 2.0, 1.0, 2.0
ULP = 2 * U  # of a value: at most


@dataclass(frozen=True, eq=False)
class Near:
    """v: in float64; r: how far float32 may be, of the same shape or one that broadcasts."""

    v: F64
    r: F64 | float = 0.0

    def __add__(self, other: "Near") -> "Near":
        return rounded(self.v + other.v, self.r + other.r)

    def __sub__(self, other: "Near") -> "Near":
        return rounded(self.v - other.v, self.r + other.r)

    def __mul__(self, other: "Near") -> "Near":
        r = np.abs(self.v) * other.r + np.abs(other.v) * self.r + self.r * other.r
        return rounded(self.v * other.v, r)

    def __truediv__(self, other: "Near") -> "Near":
        v = self.v / other.v
        smaller = np.maximum(np.abs(other.v) - other.r, 0.0)
        return rounded(v, (self.r + np.abs(v) * other.r) / smaller)

    def __getitem__(self, key: object) -> "Near":
        r = np.broadcast_to(np.asarray(self.r), self.v.shape)[key]  # type: ignore[call-overload]
        return Near(np.asarray(self.v[key]), r)  # type: ignore[call-overload]

    def twice(self) -> "Near":
        """Kept in double where it was computed, then rounded once: an exact step costs nothing."""
        return rounded(self.v, self.r)

    def exp(self, ulp: float = EXP_ULP) -> "Near":
        v = functions.exp(self.v)
        return Near(v, spread(v * functions.expm1(self.r), v, ulp))

    def sqrt(self) -> "Near":
        v = np.sqrt(self.v)
        return rounded(v, v - np.sqrt(np.maximum(self.v - self.r, 0.0)))

    def tanh(self) -> "Near":
        v = functions.tanh(self.v)
        above, below = functions.tanh(self.v + self.r), functions.tanh(self.v - self.r)
        r = np.maximum(above - v, v - below)
        return Near(v, spread(np.asarray(r), v, TANH_ULP))

    def log(self) -> "Near":
        v = functions.log(self.v)
        slope = self.r / np.maximum(self.v - self.r, SMALLEST)
        return Near(v, spread(slope, v, LIBM_ULP))

    def clamp(self, low: float, high: float) -> "Near":
        return Near(np.clip(self.v, low, high), self.r)

    def expected(self, reason: str) -> Expected:
        """With room for the rounding of the truth itself."""
        out = U * np.where(np.isfinite(self.v), np.abs(self.v), 0.0)
        allowed = np.broadcast_to(np.asarray(self.r), self.v.shape) + out + SMALLEST
        return Expected(self.v, allowed, f"{reason}: every operation rounded once, exp to 2 ulp")


def exact(v: F64) -> Near:
    return Near(v, 0.0)


def finite(x: Near) -> Near:
    """What is masked is minus infinity in every implementation."""
    return Near(x.v, np.where(np.isfinite(x.v), x.r, 0.0))


def constant(value: float) -> Near:
    return Near(np.float64(value) * np.ones(1), 0.0)


def rounded(v: F64, r: F64 | float) -> Near:
    return Near(v, r + U * (np.abs(v) + r))


def spread(r: F64, v: F64, ulp: float) -> F64:
    wide: F64 = r + ulp * ULP * (np.abs(v) + r)
    return wide


def total(terms: Near, roundings: float, *, axis: int = -1, keep: bool = True) -> Near:
    """A sum in float32 with so many roundings on the longest path."""
    v = terms.v.sum(axis=axis, keepdims=keep)
    wide = np.broadcast_to(np.asarray(terms.r), terms.v.shape)
    size = (np.abs(terms.v) + wide).sum(axis=axis, keepdims=keep)
    return Near(v, wide.sum(axis=axis, keepdims=keep) + roundings * U * size)


def where(condition: NDArray[np.bool_], a: Near, b: Near) -> Near:
    shape = np.broadcast_shapes(np.shape(condition), a.v.shape, b.v.shape)
    wide = [np.broadcast_to(np.asarray(x), shape) for x in (a.v, a.r, b.v, b.r)]
    return Near(np.where(condition, wide[0], wide[2]), np.where(condition, wide[1], wide[3]))


def sigmoid(x: Near) -> Near:
    out = constant(1.0) / (constant(1.0) + Near(-x.v, x.r).exp())
    return Near(out.v, np.where(np.isfinite(out.r), out.r, 0.0))


def silu(x: Near) -> Near:
    return swish(x, x)


def swish(x: Near, sloped: Near) -> Near:
    """x / (1 + exp(-sloped)), also where the exponential overflows."""
    out = x / (constant(1.0) + Near(-sloped.v, sloped.r).exp())
    return Near(out.v, np.where(np.isfinite(out.r), out.r, 0.0) + 2.0**-120 * np.abs(x.v))


def softplus(x: Near) -> Near:
    return where(x.v > 20.0, x, (constant(1.0) + x.exp()).log())
