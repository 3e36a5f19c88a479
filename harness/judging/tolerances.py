"""Limits of single ops and of whole runs, each with its reason.

A limit says how far an honest float32 implementation of an op may differ from the same op in
float64 on the same inputs. Two honest implementations then differ by at most two limits. The
formula of an op counts its roundings (engine/ops).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import LARGEST, Near, U
from lockstep.engine.ops.reference import Formula
from lockstep.engine.quants.base import F32
from lockstep.harness.judging.compare import largest


@dataclass(frozen=True, eq=False)
class Bound:
    allowed: NDArray[np.float64] | float
    reason: str


EXACT = Bound(0.0, "a copy, or one correctly rounded float32 operation: every bit is determined")


def value_and_bound(formula: Formula, *args: Any, build: Build) -> tuple[F32, Bound]:
    """Return the value of a formula, rounded once, and its bound."""
    with np.errstate(all="ignore"):
        found = formula(*args, build)
        if not isinstance(found, Near):  # without a radius, the formula's result is exact
            return found.astype(np.float32), EXACT
        return limit_overflow(found)


def limit_overflow(found: Near) -> tuple[F32, Bound]:
    """Return the value with its limit. Values beyond float32 have no limit, because one engine may
    overflow and another may compute in double. If the true value is NaN and has a limit, every
    honest result is NaN."""
    truth = found.settle()
    with np.errstate(all="ignore"):
        allowed = np.where(np.abs(truth.value) > LARGEST, np.inf, truth.allowed)
        instead = np.where(np.isnan(truth.value), 0.0, np.inf)
        allowed = np.where(np.isnan(allowed), instead, allowed)
        return truth.value.astype(np.float32), Bound(allowed, truth.reason)


def limits_of(
    truth: NDArray[Any], allowed: NDArray[np.float64] | float
) -> NDArray[np.float64] | float:
    """Return the limits, with NaN where both the limit and the value are infinite."""
    if not np.isposinf(allowed).any():
        return allowed
    found: NDArray[np.float64] = np.where(np.isinf(truth) & np.isposinf(allowed), np.nan, allowed)
    return found


def where_limited(truth: NDArray[Any], value: Any, allowed: NDArray[np.float64] | float) -> Any:
    """Return the value, replaced by the truth where there is no limit, because another order of
    additions may overflow there. A limit of NaN allows only NaN and infinities: a sum of infinities
    may give either in another order."""
    if value is None or value.shape != truth.shape or np.isfinite(allowed).all():
        return value
    free = np.isposinf(allowed)
    free |= np.isnan(allowed) & (np.isfinite(truth) | (np.isinf(truth) & np.isnan(value)))
    return np.where(free, truth, value)


# --- whole runs -----------------------------------------------------------------------------


# the text that golden vectors contain
BY_BOUNDS = "runs whose every op is off by a random share of its derived bound"
BY_SUMS = "perturbing every op within its rounding error"


def whole_run(noise: float, size: float, runs: str = BY_SUMS) -> Bound:
    """Return the limit for the distance between the logits of two honest runs, as an absolute
    number.

    noise: the worst logit error of an honest run (graph/floor.py), relative to the largest logit;
    size: the largest logit; runs: a description of the runs that measured the noise.
    """
    text = f"two honest runs, each within {noise:.1e} of the largest logit: measured by {runs}"
    return Bound(2 * noise * size, text)


def between_two(noise: float, logits: F32) -> float:
    """Return the limit for the error of a difference between two logits. It is twice the limit of
    `whole_run`, because one logit may be too large and the other too small."""
    return 2 * float(whole_run(noise, largest(logits)).allowed)


def between_two_in_rows(noise: float, logits: F32) -> NDArray[np.float64]:
    """Return the limit of each row from its own largest logit, (outputs,).

    Some models, such as Gemma, have a row that is many times larger than the others. This row would
    give every token a limit that is too wide. A single logit of such a row may be off by more than
    the noise times the row's largest logit (3.9 times was seen on Gemma), but not relative to
    another token. On Gemma and SmolLM2, 30 noisy runs and engines of four honest designs needed at
    most 17 % of this limit.
    """
    return np.array([between_two(noise, row) for row in logits])


def log_softmax_roundings(value: float, distance: float) -> float:
    """Return the error of a log-softmax in float32, without the list's constant. distance: the
    distance from the largest logit, whose subtraction is rounded. exp is off by two units, the
    division by one, and log by one unit of its result, which is rounded again."""
    return U * (distance + 3 + 2 * abs(value))
