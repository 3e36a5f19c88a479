"""Numbers with a bound on the error of an honest float32 computation.

With these numbers, a formula returns the result in float64 together with its bound. Each operation
adds one rounding to the errors of its arguments. A compiler that fuses a product with a sum rounds
less often, so its result stays within the bound. With plain arrays, the same formula returns only
the result; engines run it so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops import functions

F64 = NDArray[np.float64]

# unit roundoff of float32: a correctly rounded result is off by at most U times itself
U = 2.0**-24
U16 = 2.0**-11  # unit roundoff of F16
# smaller float32 numbers are subnormal, and vector code may flush them to zero
SMALLEST = 2.0**-126
LARGEST = float(np.finfo(np.float32).max)
# errors of functions: ggml's vec.h states 1.46 + 0.5 for its vector exp; glibc's manual states 1
# for float functions and 2 for tanhf ("Known Maximum Errors in Math Functions")
EXP_ULP, LIBM_ULP, TANH_ULP = 2.0, 1.0, 2.0
ULP = 2 * U  # relative size of a unit in the last place, at most


@dataclass(frozen=True, eq=False)
class Expected:
    """The result, and the allowed error of each element.

    `actual` replaces the node's value in the comparison, for orders with ties and for codes.
    `answer` is then one of the right results.
    """

    value: NDArray[Any]
    allowed: F64 | float
    reason: str
    actual: NDArray[Any] | None = None
    answer: NDArray[np.int32] | NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False)
class Near:
    """A number with a bound on its error. v: the value in float64; r: the largest error in float32,
    in a shape that broadcasts.

    reason: a description of the counted roundings; copied: mask of elements that were copied
    without computation.
    """

    v: F64
    r: F64 | float = 0.0
    reason: str = ""
    copied: NDArray[np.bool_] | None = None

    __array_ufunc__ = None  # lets arrays use the operators of this class

    def __add__(self, other: "Number | float") -> "Near":
        other = near(other)
        return round_to_f32(self.v + other.v, self.r + other.r)

    def __sub__(self, other: "Number | float") -> "Near":
        other = near(other)
        return round_to_f32(self.v - other.v, self.r + other.r)

    def __mul__(self, other: "Number | float") -> "Near":
        other = near(other)
        r = scale_by(other.r, self.v) + scale_by(self.r, other.v) + scale_by(self.r, other.r)
        return round_to_f32(self.v * other.v, r)

    def __truediv__(self, other: "Number | float") -> "Near":
        other = near(other)
        v = self.v / other.v
        smaller = np.maximum(np.abs(other.v) - other.r, 0.0)
        return round_to_f32(v, (self.r + scale_by(other.r, v)) / smaller)

    def __radd__(self, other: F64 | float) -> "Near":
        return near(other) + self

    def __rsub__(self, other: F64 | float) -> "Near":
        return near(other) - self

    def __rmul__(self, other: F64 | float) -> "Near":
        return near(other) * self

    def __rtruediv__(self, other: F64 | float) -> "Near":
        return near(other) / self

    def __neg__(self) -> "Near":
        return Near(-self.v, self.r)

    def __getitem__(self, key: object) -> "Near":
        r = np.broadcast_to(np.asarray(self.r), self.v.shape)[key]  # type: ignore[call-overload]
        return Near(np.asarray(self.v[key]), r)  # type: ignore[call-overload]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.v.shape

    def twice(self) -> "Near":
        """Add one rounding to float32, as for a result that was computed in double."""
        return round_to_f32(self.v, self.r)

    def exp(self, ulp: float = EXP_ULP) -> "Near":
        v = functions.exp(self.v)
        return Near(v, spread(v * functions.expm1(self.r), v, ulp))

    def sqrt(self) -> "Near":
        v = np.sqrt(self.v)
        return round_to_f32(v, v - np.sqrt(np.maximum(self.v - self.r, 0.0)))

    def tanh(self) -> "Near":
        v = functions.tanh(self.v)
        above, below = functions.tanh(self.v + self.r), functions.tanh(self.v - self.r)
        r = np.maximum(above - v, v - below)
        return Near(v, spread(np.asarray(r), v, TANH_ULP))

    def log(self) -> "Near":
        v = functions.log(self.v)
        slope = self.r / np.maximum(self.v - self.r, SMALLEST)
        return Near(v, spread(slope, v, LIBM_ULP))

    def expect(self, reason: str) -> Expected:
        """Return the value with its bound, which includes the rounding of the value itself to
        float32."""
        return self.settle(f"{reason}: every operation rounded once, exp to 2 ulp")

    def settle(self, reason: str = "") -> Expected:
        """Return the value with its bound; without `reason`, the number's own reason is used."""
        allowed = np.abs(self.v)
        if not np.isfinite(allowed.max(initial=0.0)):
            allowed = np.where(np.isfinite(allowed), allowed, 0.0)
        allowed *= U
        allowed += self.r
        allowed += SMALLEST
        if self.copied is not None:
            allowed = np.where(self.copied, 0.0, allowed)
        return Expected(self.v, allowed, reason or self.reason)


# a formula takes and returns these; it returns a limit if it gets one
Number = F64 | Near


def near(x: "Number | float") -> Near:
    return x if isinstance(x, Near) else Near(np.asarray(x, np.float64), 0.0)


def exact(v: F64) -> Near:
    return Near(v, 0.0)


def value_of(x: Number) -> F64:
    return x.v if isinstance(x, Near) else x


def because(x: Number, reason: str) -> Number:
    """Return the number with a reason, which describes the roundings in its bound."""
    return replace(x, reason=reason) if isinstance(x, Near) else x


def expected_of(x: Number, reason: str) -> Expected:
    """Return the value with its bound, or with zero if bounds are off."""
    return x.expect(reason) if isinstance(x, Near) else Expected(x, 0.0, reason)


def finite(x: Near) -> Near:
    """Clear the radius of values that are not finite, because every engine masks by minus
    infinity."""
    return Near(x.v, np.where(np.isfinite(x.v), x.r, 0.0))


def constant(value: float) -> Near:
    return Near(np.float64(value) * np.ones(1), 0.0)


def scale_by(r: F64 | float, by: F64 | float) -> F64 | float:
    """Return r times |by|; the two may be radii."""
    if is_zero(r) or is_zero(by):
        return 0.0
    wide: F64 = np.abs(by) * r
    return wide


def is_zero(r: F64 | float) -> bool:
    """Return True for the float 0.0, which needs no arithmetic. Arrays give False."""
    return isinstance(r, float) and r == 0.0


def round_to_f32(v: F64, r: F64 | float) -> Near:
    wide = np.abs(v)  # r + U * (|v| + r) in one array, because memory takes most of the time
    if is_zero(r):
        return Near(v, wide * U)
    wide += r
    wide *= U
    wide += r
    return Near(v, wide)


def spread(r: F64, v: F64, ulp: float) -> F64:
    wide: F64 = r + ulp * ULP * (np.abs(v) + r)
    return wide


# --- functions of either kind of number ---------------------------------------------------------


def exp(x: Number) -> Number:
    return x.exp() if isinstance(x, Near) else functions.exp(x)


def sqrt(x: Number) -> Number:
    return x.sqrt() if isinstance(x, Near) else np.sqrt(x)


def tanh(x: Number) -> Number:
    return x.tanh() if isinstance(x, Near) else functions.tanh(x)


def twice(x: Number) -> Number:
    """Round a double result once to float32."""
    return x.twice() if isinstance(x, Near) else x


def total(terms: Near, roundings: float, *, axis: int = -1, keep: bool = True) -> Near:
    """Return a sum in float32, with `roundings` roundings on the longest path."""
    v = terms.v.sum(axis=axis, keepdims=keep)
    wide = np.broadcast_to(np.asarray(terms.r), terms.v.shape)
    size = (np.abs(terms.v) + wide).sum(axis=axis, keepdims=keep)
    return Near(v, wide.sum(axis=axis, keepdims=keep) + roundings * U * size)


def sum_terms(terms: Number, roundings: float, *, axis: int = -1, keep: bool = True) -> Number:
    if isinstance(terms, Near):
        return total(terms, roundings, axis=axis, keep=keep)
    return np.asarray(terms.sum(axis=axis, keepdims=keep))


def square(x: Number) -> Number:
    """Square without a rounding; the sum of squares counts that rounding."""
    if isinstance(x, Near):
        return Near(x.v * x.v, 2 * np.abs(x.v) * x.r + x.r * x.r)
    return x * x


def choose(condition: NDArray[np.bool_], a: "Number | float", b: "Number | float") -> Number:
    if not (isinstance(a, Near) or isinstance(b, Near)):
        return np.where(condition, a, b)
    a, b = near(a), near(b)
    return Near(np.where(condition, a.v, b.v), np.where(condition, a.r, b.r))


def rearrange(x: Number, order: Callable[[F64], F64]) -> Number:
    """Return the number in another shape or order."""
    if isinstance(x, Near):
        r = np.broadcast_to(np.asarray(x.r), x.v.shape)
        return replace(x, v=order(x.v), r=order(r))
    return order(x)


def sigmoid(x: Near) -> Near:
    out = constant(1.0) / (constant(1.0) + Near(-x.v, x.r).exp())
    return Near(out.v, np.where(np.isfinite(out.r), out.r, 0.0))


def silu(x: Number) -> Number:
    return swish(x, x)


def swish(x: Number, sloped: Number) -> Number:
    """Return x / (1 + exp(-sloped)); the exponential may overflow."""
    out = x / (1.0 + exp(-sloped))
    if not isinstance(out, Near):
        return out
    r = np.where(np.isfinite(out.r), out.r, 0.0) + 2.0**-120 * np.abs(value_of(x))
    return Near(out.v, r)


def softplus(x: Near) -> Near:
    return near(choose(x.v > 20.0, x, (constant(1.0) + x.exp()).log()))
