"""Every limit in the project, derived from counted roundings, with the reason beside it.

U is the unit roundoff of float32: one correctly rounded operation is off by at most U times its
result. A limit says how far an honest float32 implementation of an op may be from the same op in
float64 on the same inputs; two honest implementations are then at most two limits apart.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops.products import additions, block_roundings
from engine.ops.reference import F64, Bools
from engine.quants.base import F32

U = 2.0**-24
SMALLEST = 2.0**-126  # below it float32 is subnormal, and vector code may flush to zero
LARGEST = float(np.finfo(np.float32).max)
TRUTH = 1  # the truth is rounded once on its way out


@dataclass(frozen=True, eq=False)
class Bound:
    allowed: NDArray[np.float64] | float
    reason: str


EXACT = Bound(0.0, "a copy, or one correctly rounded float32 operation: every bit is determined")


def in_range(allowed: F64, size: F64) -> F64:
    """What is allowed, without a limit where the size of a step is beyond float32.

    There honest engines part: one overflows, another computes in double, a third clamps. A size is
    NaN where what is computed with is, and then so is every honest result.
    """
    limited: F64 = np.where(size <= LARGEST, allowed, np.where(np.isnan(size), 0.0, np.inf))
    return limited


def product(
    size: F64, out: F32, terms: int, lanes: int, block: int, filled: NDArray[Any] | None = None
) -> Bound:
    """size: sum of the magnitudes that are added up for each element of `out`.

    filled: how many terms (runs, see below) are not zero, in a shape that broadcasts. A zero times
    anything and a sum with zero are exact in any order, so that these alone are rounded.

    `block`: how many weights in a row are multiplied as integers, exactly (`run_of` in
    engine/ops/products.py).
    """
    if block > 1:
        most = np.asarray(terms // block if filled is None else filled)
        roundings = block_roundings(most, lanes)
        reason = f"{most.max(initial=0)} integer products summed in float32"
    else:
        most = np.asarray(terms if filled is None else filled)
        roundings = np.minimum(additions(terms, lanes), most + 1)
        reason = f"{most.max(initial=0)} products summed in float32 in {lanes} lanes"
    reason += f", {roundings.max(initial=0)} roundings"
    allowed = roundings * U * size + TRUTH * U * np.abs(out) + terms * SMALLEST
    return Bound(in_range(allowed, size), reason)


def rms_norm(x: F32, out: F32) -> Bound:
    """Squares, mean, eps (half of them through the root), root, reciprocal, two products."""
    roundings = 6 + TRUTH
    squares = np.square(x, dtype=np.float64).sum(axis=-1, keepdims=True)
    allowed = roundings * U * np.abs(out, dtype=np.float64) + SMALLEST
    return Bound(
        in_range(allowed, np.maximum(squares, np.abs(out))),
        f"squares in float32, their sum in double: {roundings} roundings",
    )


def rope(size: F64) -> Bound:
    """size: |x0 * cos| + |x1 * sin| for each element."""
    roundings = 4 + TRUTH
    return Bound(
        in_range(roundings * U * size + SMALLEST, size),
        f"cosine, sine, two products and their sum: {roundings} roundings (the angle's own "
        "float32 recursion is mirrored)",
    )


def soft_max(x: F32, out: F32, scale: float, visible: Bools | None) -> Bound:
    """An absolute error of the exponent is a relative one of the power.

    Exponents: the scaled score, the largest, their difference. exp: 2 ulp. The sum: the powers'
    own errors and a tree over 16 lanes, as ggml adds vectors up in double; then reciprocal and
    product. Powers added up in float32 are a design of their own (harness/designs.py).
    """
    scores = x.astype(np.float64) * scale
    shown = np.ones(x.shape, bool) if visible is None else np.broadcast_to(visible, x.shape)
    s = np.where(shown, np.abs(scores), 0.0)
    top = np.abs(np.where(shown, scores, -np.inf).max(axis=-1, keepdims=True))
    top = np.where(np.isfinite(top), top, 0.0)
    each = U * (2 * s + 2 * top + 4)
    common = (each * out).sum(axis=-1, keepdims=True) + (4 + 2 + TRUTH) * U
    allowed = np.abs(out, dtype=np.float64) * (each + common) + SMALLEST
    return Bound(
        in_range(allowed, s.max(axis=-1, keepdims=True)),
        "exponent rounded three times, exp to 2 ulp, sum over 16 lanes, reciprocal and product",
    )


def swiglu(out: F32, up: F32) -> Bound:
    roundings = 8 + TRUTH
    allowed = roundings * U * np.abs(out, dtype=np.float64) + 2.0**-120 * np.abs(up)
    return Bound(
        in_range(allowed, np.abs(out, dtype=np.float64)),
        f"exp to 2 ulp, sum, division, product: {roundings} roundings",
    )


def swiglu_by_tanh(gate: F32, up: F32, out: F32) -> Bound:
    """The sigmoid is 1/2 + tanh(gate / 2) / 2, a sum that cancels where the gate is negative.

    tanh: 2 ulp of up to 1, so 4 U; halved, it is 2 U of gate * up, however small the result.
    """
    roundings = 3 + TRUTH
    lost = 2 * U * np.abs(np.tanh(gate.astype(np.float64) / 2) * gate * up)
    return Bound(
        lost + roundings * U * np.abs(out, dtype=np.float64) + 2.0**-120 * np.abs(up),
        f"tanh to 2 ulp beside 1; sum, two products: {roundings} roundings",
    )


def swiglu_by_exp2(gate: F32, up: F32, out: F32) -> Bound:
    """exp(-gate) is 2^(-gate * log2(e)): constant and product are rounded, and an absolute error
    of the exponent is a relative one of the power, of which 1 - sigmoid reaches the result."""
    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        lost = 2 * np.abs(wide) / (1 + np.exp(wide))
    plain = swiglu(out, up)
    return Bound(
        plain.allowed + lost * U * np.abs(out),
        f"exp by way of exp2, whose exponent is rounded twice; {plain.reason}",
    )


def sum_experts(size: F64, out: F32, used: int) -> Bound:
    """size: sum of the magnitudes. In any order a term goes through n - 1 additions at most."""
    roundings = used - 1
    return Bound(
        roundings * U * size + TRUTH * U * np.abs(out, dtype=np.float64),
        f"a sum of {used} experts in any order: {roundings} roundings and that of the truth",
    )


def normalise(out: F32) -> Bound:
    roundings = out.shape[-1] + 1 + TRUTH
    size = np.abs(out, dtype=np.float64)
    return Bound(
        in_range(roundings * U * size, size),
        f"a sum of {out.shape[-1]} weights and a division: {roundings} roundings",
    )


def flash_attn(out: F32, radius: NDArray[np.float64]) -> Bound:
    size = np.abs(out, dtype=np.float64)
    return Bound(
        in_range(radius + TRUTH * U * size + SMALLEST, size),
        "running bound through the mirrored online softmax (engine/ops/flash_mirror.py)",
    )


# --- whole runs -----------------------------------------------------------------------------


def whole_run(noise: float, size: float) -> Bound:
    """How far apart the logits of two honest runs may be, absolutely.

    noise: the worst logit error of an honest run (harness/noise.py), relative to the largest
    logit; size: the largest logit.
    """
    return Bound(
        2 * noise * size,
        f"two honest runs, each within {noise:.1e} of the largest logit: measured by runs whose "
        "every op is off by a random share of its derived bound",
    )


def log_softmax_roundings(value: float, distance: float) -> float:
    """Of the logarithm of a softmax in float32, but for the constant that a list may be off by.

    distance: of the logit from the largest, whose subtraction is rounded; exp is off by two units,
    the division by one more, and log by one of its result, which is rounded once more.
    """
    return U * (distance + 3 + 2 * abs(value))
