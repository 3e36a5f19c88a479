"""The judgement of an op by three results on the same inputs.

Our own result is the truth: float64 inside, with ggml's deliberate roundings. The oracle's and the
subject's results are each compared with it, within the op's bound. An engine outside the bound is
at fault.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.judging.comparable import incomparable
from lockstep.harness.judging.compare import mismatch_between, share_of_limit, worst_distance
from lockstep.harness.judging.designs import Other, agrees
from lockstep.harness.judging.factor_designs import FactorDesign
from lockstep.harness.judging.tolerances import Bound, where_limited
from lockstep.harness.records import Mismatch, Site


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteFinding:
    """The judge's finding at one site."""

    site: Site
    op: str
    # worst error of the subject against the oracle or the truth, on the same inputs
    err_local: float
    err_oracle: float  # worst error of the oracle against float64
    allowed: float  # limit of one honest implementation, at its largest element
    reason: str
    size: float  # largest magnitude in the oracle's tensor
    mismatch: Mismatch | None  # None if the tensors agree
    at_fault: str  # "", "subject", "oracle" or "both"
    outputs: tuple[int, ...] = ()  # indices along the last axis that are beyond the limit
    # by number of the axis from the end: the indices that are wrong, if others on this axis are
    # right
    alone: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    sees: float = math.inf  # an error of scale of the whole result is detected from this share on
    compared: int = 1  # number of elements with a limit, and with a number on at least one side
    layer: int | None = None  # the layer that contains the op
    axes: str = ""  # description of the tensor's axes
    shape: tuple[int, ...] = ()  # shape of the tensor as it is shown
    inputs: tuple[Site, ...] = ()  # computed tensors that the op reads
    weight: str = ""  # tensors of the file that the op reads
    # description of parameters that the subject's file gives differently, or whose values are shown
    parameters: str = ""
    # for the worst element, its error as a share of its limit, and its index. An engine of another
    # design may be beyond 1 and still be right.
    worst: tuple[float, tuple[int, ...]] = (0.0, ())
    # False: the limit is that of the last of several ops, because the limit of all was not measured
    measured: bool = True
    # the design with which the engine is compared instead of float32
    design: FactorDesign | None = None


def finding_of(
    site: Site,
    op: str,
    truth: NDArray[Any],
    oracle: NDArray[Any],
    subject: NDArray[Any] | None,
    bound: Bound,
    others: Iterable[Other],
) -> SiteFinding:
    shown = {"oracle": oracle, "subject": subject}
    allowed = np.broadcast_to(np.asarray(bound.allowed), truth.shape)
    oracle, subject = (where_limited(truth, value, allowed) for value in (oracle, subject))
    mismatch = mismatch_between(oracle, subject, np.multiply(2, allowed))
    wrong: list[str] = []
    if mismatch or mismatch_between(truth, oracle, allowed):
        others = tuple(others)
        wrong = [r for r, value in shown.items() if not conforms(value, truth, bound, others)]
    at_fault = "both" if len(wrong) == 2 else "".join(wrong)
    accused = subject if at_fault == "subject" else oracle
    if not at_fault:
        mismatch = None
    elif mismatch is None:
        mismatch = mismatch_between(truth, accused, allowed)
    worst = (0.0, ()) if subject is None else share_of_limit(oracle, subject, 2 * allowed)
    return SiteFinding(
        site=site,
        op=op,
        err_local=worst_distance(oracle, subject) if subject is not None else float("inf"),
        err_oracle=worst_distance(truth, oracle),
        allowed=float(allowed.max(initial=0.0, where=np.isfinite(allowed))),
        reason=bound.reason,
        size=float(np.abs(oracle).max()) if oracle.size else 0.0,
        mismatch=mismatch,
        at_fault=at_fault,
        shape=truth.shape,
        outputs=affected_indices(truth, accused, allowed),
        alone=affected_alone(truth, accused, allowed) if at_fault else {},
        sees=smallest_scale_error(truth, allowed),
        compared=elements_compared(truth, oracle, allowed),
        worst=worst,
    )


def without_fault(found: SiteFinding) -> SiteFinding:
    return replace(found, mismatch=None, at_fault="", outputs=(), alone={})


def conforms(
    shown: NDArray[Any] | None, truth: NDArray[Any], bound: Bound, others: Iterable[Other]
) -> bool:
    """Return True if the value is within the bound of llama.cpp, or within that of another honest
    design."""
    if shown is None or shown.shape != truth.shape:
        return False
    return any(agrees(way, shown) for way in (lambda _: (truth, bound), *others))


def elements_compared(
    truth: NDArray[Any], oracle: NDArray[Any], allowed: NDArray[np.float64]
) -> int:
    if oracle.shape != truth.shape:
        return 0
    return truth.size - incomparable(truth, oracle, allowed).total


def affected_indices(
    truth: NDArray[Any], actual: NDArray[Any] | None, allowed: NDArray[np.float64]
) -> tuple[int, ...]:
    """Return the indices along the last axis at which some element exceeds the bound."""
    if actual is None or actual.shape != truth.shape:
        return ()
    bad = out_of_bound(truth, actual, allowed)
    rows = bad.reshape(-1, bad.shape[-1]) if bad.size else bad.reshape(0, 0)
    return tuple(np.flatnonzero(rows.any(axis=0)).tolist())


def out_of_bound(
    truth: NDArray[Any], actual: NDArray[Any], allowed: NDArray[np.float64]
) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(actual.astype(np.float64) - truth) <= allowed)
    return np.asarray(bad & ~((actual == truth) | (np.isnan(actual) & np.isnan(truth))))


def affected_alone(
    truth: NDArray[Any], actual: NDArray[Any] | None, allowed: NDArray[np.float64]
) -> Mapping[int, tuple[int, ...]]:
    """Return the wrong indices along each axis except the last, if other indices of that axis are
    right. Such indices are, for example, some tokens of a batch, or some heads."""
    if actual is None or actual.shape != truth.shape:
        return {}
    found: dict[int, tuple[int, ...]] = {}
    bad = out_of_bound(truth, actual, allowed)
    for axis in range(bad.ndim - 1):
        some = bad.any(axis=tuple(i for i in range(bad.ndim) if i != axis))
        if some.any() and not some.all():
            found[axis - bad.ndim] = tuple(np.flatnonzero(some).tolist())
    return found


def smallest_scale_error(truth: NDArray[Any], allowed: NDArray[np.float64]) -> float:
    """Return the smallest scale error that must show in some element, whatever was rounded. Two
    honest values may differ by two bounds, and an engine may be off by two bounds, so a change by
    four bounds must show. The honest value may be smaller than the truth by one bound."""
    with np.errstate(invalid="ignore", divide="ignore"):
        least = np.abs(truth, dtype=np.float64) - allowed
        share = 4 * allowed / least
    return float(share.min(initial=math.inf, where=(least > 0) & (least < math.inf)))
