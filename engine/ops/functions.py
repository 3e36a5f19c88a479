"""exp, log, tanh, sine, cosine and erf in float64: the same bits on every CPU.

numpy and the C library have different code for each kind of vector unit, with different last bits.
The functions here use only additions, products, quotients and exact scalings, which IEEE 754
determines, in one order (numba fuses nothing without `fastmath`). Results are within a few units in
the last place, less than a millionth of a float32 rounding error.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite.ir import DoubleType, IntType
from numba import types
from numba.extending import intrinsic
from numpy.typing import ArrayLike, NDArray

from lockstep.engine.kernels.compiled import compile_kernel, source_stamp

F64 = NDArray[np.float64]
STAMP = source_stamp(__file__)  # for kernels in other files that contain this code

# so few bits that products with these integers are exact, and the rest of the constant
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
QUARTER = (  # pi / 2 in four parts
    *(float.fromhex("0x1.921fb54400000p+0"), float.fromhex("0x1.0b4611a600000p-34")),
    *(float.fromhex("0x1.3198a2e000000p-69"), float.fromhex("0x1.b839a252049c1p-104")),
)
ENOUGH = 2.0**-60  # share of a sum below which a term changes nothing
FEW_TURNS = 2.0**20  # limit below which products with the parts of QUARTER are exact
# coefficients of rising powers, the last one first
EXPM1 = tuple(1 / math.factorial(n) for n in range(15, 1, -1))
LOG = tuple(2 / n for n in range(23, 2, -2))
SIN = tuple((-1) ** (n // 2) / math.factorial(n) for n in range(19, 2, -2))
COS = tuple((-1) ** (n // 2) / math.factorial(n) for n in range(20, 1, -2))


def exp(x: ArrayLike) -> F64:
    return each(exps, x)


def expm1(x: ArrayLike) -> F64:
    return each(expm1s, x)


def log(x: ArrayLike) -> F64:
    return each(logs, x)


def tanh(x: ArrayLike) -> F64:
    return each(tanhs, x)


def erf(x: ArrayLike) -> F64:
    return each(erfs, x)


def power(base: ArrayLike, exponent: ArrayLike) -> F64:
    """Return base ** exponent for positive bases.

    For each unit of the result's logarithm, the error grows by one unit in the last place.
    """
    return exp(np.asarray(exponent, np.float64) * log(base))


def sin(x: ArrayLike) -> F64:
    n, rest = quarters(np.asarray(x, np.float64))
    return each(sines, rest, n)


def cos(x: ArrayLike) -> F64:
    n, rest = quarters(np.asarray(x, np.float64))
    return each(sines, rest, n + 1)


def each(loop: Callable[..., None], x: ArrayLike, *more: NDArray[np.int64]) -> F64:
    """Run the loop over all elements, and return results in the shape of x."""
    wide = np.asarray(x, np.float64)
    out = np.empty(wide.size)
    loop(wide.reshape(-1), *(other.reshape(-1) for other in more), out)
    return out.reshape(wide.shape)


@compile_kernel
def series(x: float, factors: tuple[float, ...]) -> float:
    """Evaluate a polynomial in x; the last factor is the constant term."""
    out = 0.0
    for factor in factors:
        out = out * x + factor
    return out


@compile_kernel
def expm1_near_zero(r: float) -> float:
    """Return exp(r) - 1 for |r| up to log(2) / 2."""
    if r == 0.0:  # keeps the sign of zero
        return r
    return float(r + r * (r * series(r, EXPM1)))


@compile_kernel
def reduce_argument(x: float) -> tuple[int, float]:
    """Return k and r with x = k log(2) + r, for finite x no larger than 1000."""
    k = math.floor(x / LN2_HIGH + 0.5)
    return k, (x - k * LN2_HIGH) - k * LN2_LOW


@compile_kernel
def one_exp(x: float) -> float:
    if not abs(x) < 1000.0:
        return x if x != x else (math.inf if x > 0 else 0.0)
    k, r = reduce_argument(x)
    return math.ldexp(1.0 + expm1_near_zero(r), k)


@compile_kernel
def one_expm1(x: float) -> float:
    if abs(x) < LN2_HIGH / 2:
        return float(expm1_near_zero(x))
    if not abs(x) < 700.0:
        return float(one_exp(x) - 1.0)
    k, r = reduce_argument(x)
    return math.ldexp(expm1_near_zero(r) + (1.0 - math.ldexp(1.0, -k)), k)


@compile_kernel
def one_log(x: float) -> float:
    if not 0.0 < x < math.inf:
        return -math.inf if x == 0 else (x if x > 0 else math.nan)
    m, k = math.frexp(x)
    if m < math.sqrt(0.5):
        m, k = 2.0 * m, k - 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    near_one = f - s * (f - z * series(z, LOG))
    return float(k * LN2_HIGH + (near_one + k * LN2_LOW))


@compile_kernel
def one_tanh(x: float) -> float:
    if abs(x) > 22.0:
        return math.copysign(1.0, x)
    t = one_expm1(2.0 * abs(x))
    return math.copysign(t / (t + 2.0), x)


@compile_kernel
def one_erf(x: float) -> float:
    a = abs(x)
    if not a < 6.0:
        return x if x != x else math.copysign(1.0, x)
    if a < 3.0:  # sums a series of positive terms
        term, total, n = a, a, 1.0
        while term > ENOUGH * total:
            term = term * (2.0 * a * a) / (2.0 * n + 1.0)
            total, n = total + term, n + 1.0
        out = 2.0 / math.sqrt(math.pi) * one_exp(-a * a) * total
    else:  # computes the difference from one by a continued fraction
        below = 0.0
        for n in range(25, 0, -1):
            below = n / 2.0 / (a + below)
        out = 1.0 - one_exp(-a * a) / (math.sqrt(math.pi) * (a + below))
    return math.copysign(out, x)


@compile_kernel
def one_sin(quarter: int, r: float) -> float:
    """Return the sine of `quarter` quarter turns plus r, where |r| is at most half a quarter
    turn."""
    z = r * r
    if quarter % 2:
        side = 1.0 + z * series(z, COS)
    else:
        side = r if r == 0.0 else r + r * (z * series(z, SIN))  # keeps the sign of zero
    return float(side if quarter % 4 < 2 else -side)


@intrinsic
def power_of_two(typing: Any, k: Any) -> Any:
    """Return two to the power of k, built from its bits; k: from -1022 to 1023."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = IntType(64)
        bits = builder.shl(builder.add(args[0], whole(1023)), whole(52))
        return builder.bitcast(bits, DoubleType())

    return types.float64(types.int64), codegen


@compile_kernel
def exps(x: F64, out: F64) -> None:
    """Compute `one_exp` of each number, with equal bits, but without a branch, so that it
    vectorises.
    """
    for i in range(len(x)):
        v = x[i]
        known = abs(v) < 1000.0
        k, r = reduce_argument(v if known else 0.0)
        # half of k at a time, so that the result may overflow, or round to a subnormal, as in ldexp
        first = k >> 1
        found = (1.0 + (r + r * (r * series(r, EXPM1)))) * power_of_two(first)
        beyond = v if v != v else (math.inf if v > 0 else 0.0)
        out[i] = found * power_of_two(k - first) if known else beyond


@compile_kernel
def expm1s(x: F64, out: F64) -> None:
    for i in range(len(x)):
        out[i] = one_expm1(x[i])


@compile_kernel
def logs(x: F64, out: F64) -> None:
    for i in range(len(x)):
        out[i] = one_log(x[i])


@compile_kernel
def tanhs(x: F64, out: F64) -> None:
    for i in range(len(x)):
        out[i] = one_tanh(x[i])


@compile_kernel
def erfs(x: F64, out: F64) -> None:
    for i in range(len(x)):
        out[i] = one_erf(x[i])


@compile_kernel
def sines(r: F64, quarter: NDArray[np.int64], out: F64) -> None:
    for i in range(len(r)):
        out[i] = one_sin(quarter[i], r[i])


def quarters(x: F64) -> tuple[NDArray[np.int64], F64]:
    """Return the number of the nearest quarter turn (only its last two bits count) and the
    remainder.
    """
    few = np.abs(x) < FEW_TURNS
    near = np.where(few, x, 0.0)
    n = np.rint(near / QUARTER[0])
    rest = near
    for part in QUARTER:
        rest = rest - n * part
    rest = np.where(n == 0, near, rest)  # keeps minus zero
    whole = n.astype(np.int64)
    if few.all():
        return whole, rest
    whole, rest = np.array(whole), np.array(rest)
    for at in np.argwhere(~few):
        whole[tuple(at)], rest[tuple(at)] = many_quarters(float(x[tuple(at)]))
    return whole, rest


def many_quarters(x: float) -> tuple[int, float]:
    """Return `quarters` of any number, computed with integers."""
    if not math.isfinite(x):
        return 0, math.nan
    bits = 1200  # exceeds the largest exponent plus twice the number of significant bits
    n, d = x.as_integer_ratio()
    above, below = n << bits, d * half_pi(bits)
    count = (2 * above + below) // (2 * below)
    return count % 4, (above - count * below) / (d << bits)


@cache
def half_pi(bits: int) -> int:
    """Return pi / 2 times two to the power of `bits`, by Machin's formula."""
    guard = 20
    one = 1 << (bits + guard)
    return (8 * arctan_of_inverse(5, one) - 2 * arctan_of_inverse(239, one)) >> guard


def arctan_of_inverse(n: int, one: int) -> int:
    term, total, k = one // n, 0, 0
    while term:
        total += (-1) ** k * (term // (2 * k + 1))
        term //= n * n
        k += 1
    return total
