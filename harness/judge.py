"""Judge every op alone: run the graph in float64 on the oracle's own inputs, and bound each op.

The judge is a third run of the graph. At every site it has three values for one op on the same
inputs: its own (float64 inside, ggml's deliberate roundings kept), the oracle's, and the
subject's, who was made to work on the oracle's inputs too. Then it hands the oracle's value on.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.trace import SITES
from harness.bounded import BoundedOps, carried
from harness.comparable import incomparable
from harness.compare import mismatch_between, worst_distance
from harness.designs import PER_EXPERT, Other, agrees, order_of, reordered, where_limited
from harness.records import Mismatch, Site
from harness.tolerances import EXACT, Bound

RESIDUALS = ("embd", "l_out")  # what the sites' input "residual" stands for


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteFinding:
    """What the judge found at one site."""

    site: Site
    op: str
    err_local: float  # subject against oracle on the oracle's inputs, worst element
    err_oracle: float  # oracle against float64
    allowed: float  # the limit of one honest implementation at its largest element
    reason: str
    size: float  # largest magnitude of the oracle's tensor
    mismatch: Mismatch | None  # None: in agreement
    at_fault: str  # "", "subject", "oracle" or "both"
    outputs: tuple[int, ...] = ()  # indices along the last axis that are out of bound
    sees: float = math.inf  # a scale of the whole result that is off by this share must show
    compared: int = 1  # elements that are a number on some side, and have a limit
    layer: int | None = None  # that the op is part of
    axes: str = ""  # of the tensor, in words
    inputs: tuple[Site, ...] = ()  # what the op reads of what was computed before
    weight: str = ""  # the tensor of the file that it reads, or several
    parameters: str = ""  # in words, where the subject's file gives the op others


class Judge(BoundedOps):
    """Runs the graph on the oracle's values: ops whose results carry bounds, and the probe that
    holds what two engines show against each."""

    def __init__(
        self,
        oracle: Mapping[Site, NDArray[Any]],
        subject: Mapping[Site, NDArray[Any]],
        *,
        lanes: int,
        n_threads: int,
        n_ctx: int,
        generic: Collection[str] = (),
        given: Mapping[Site, NDArray[Any]] | None = None,
    ) -> None:
        """given: what both were made to go on with at some sites, whatever they had computed."""
        super().__init__(n_threads, n_ctx, generic, lanes=lanes)
        self.oracle, self.subject, self.given = oracle, subject, given or {}
        self.step = 0
        self.order: NDArray[np.int64] | None = None  # of the subject's experts in this layer
        self.findings: list[SiteFinding] = []
        self.missing: list[Site] = []  # not judged: the oracle shows not them, or not their inputs
        self.hidden: set[Site] = set()  # what the oracle does not show
        self.residual: Site | None = None  # what the next layer begins with

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        site = Site(step=self.step, layer=layer, name=name)
        found = carried(value)
        value, bound, others, choose = np.asarray(value), found.bound, found.others(), found.meant
        if site in self.given:
            return self.given[site]
        hidden_input = self.reads_hidden(site)
        if name in RESIDUALS:
            self.residual = site
        if site not in self.oracle:
            self.hidden.add(site)
        if site in self.hidden or hidden_input:
            self.missing.append(site)
            return self.oracle.get(site, value)
        oracle = self.oracle[site]
        subject = self.subject.get(site)
        if choose is not None and oracle.shape == value.shape:
            value = choose(oracle)
            others = [lambda shown: (choose(shown), EXACT)]
            self.order = None if subject is None else order_of(oracle, subject)
        elif name in PER_EXPERT:
            subject = self.in_order(oracle, subject, bound)
        info = SITES[name]
        finding = self.finding(site, info.op, value, oracle, subject, bound, others)
        self.findings.append(replace(finding, layer=layer, axes=info.shape))
        return oracle if oracle.shape == value.shape else value

    def reads_hidden(self, site: Site) -> bool:
        """Whether the op works on what the oracle does not show: ours is not what it was given."""
        inputs = SITES[site.name].inputs
        sites = [Site(step=site.step, layer=site.layer, name=name) for name in inputs]
        if "residual" in inputs and self.residual is not None:
            sites.append(self.residual)
        return not self.hidden.isdisjoint(sites)

    def in_order(
        self, oracle: NDArray[Any], subject: NDArray[Any] | None, bound: Bound
    ) -> NDArray[Any] | None:
        """The subject's experts as the oracle lists them, if so they agree better.

        On values that were put in, a subject may go on in the oracle's order or in its own.
        """
        if subject is None or self.order is None or subject.shape != oracle.shape:
            return subject
        ways = (subject, reordered(subject, self.order))
        off = [mismatch_between(oracle, way, np.multiply(2, bound.allowed)) for way in ways]
        return min(zip(ways, off, strict=True), key=lambda w: w[1].mismatched if w[1] else 0)[0]

    @staticmethod
    def finding(
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
            outputs=affected(truth, accused, allowed),
            sees=smallest_scale_error(truth, allowed),
            compared=elements_compared(truth, oracle, allowed),
        )


def conforms(
    shown: NDArray[Any] | None, truth: NDArray[Any], bound: Bound, others: Iterable[Other]
) -> bool:
    """Is it what llama.cpp, or any honest engine of another design, would show?"""
    if shown is None or shown.shape != truth.shape:
        return False
    return any(agrees(way, shown) for way in (lambda _: (truth, bound), *others))


def elements_compared(
    truth: NDArray[Any], oracle: NDArray[Any], allowed: NDArray[np.float64]
) -> int:
    if oracle.shape != truth.shape:
        return 0
    return truth.size - incomparable(truth, oracle, allowed).total


def affected(
    truth: NDArray[Any], actual: NDArray[Any] | None, allowed: NDArray[np.float64]
) -> tuple[int, ...]:
    """Indices along the last axis at which any element is out of bound."""
    if actual is None or actual.shape != truth.shape:
        return ()
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(actual.astype(np.float64) - truth) <= allowed)
    bad &= ~((actual == truth) | (np.isnan(actual) & np.isnan(truth)))
    rows = bad.reshape(-1, bad.shape[-1]) if bad.size else bad.reshape(0, 0)
    return tuple(int(i) for i in np.flatnonzero(rows.any(axis=0)))


def smallest_scale_error(truth: NDArray[Any], allowed: NDArray[np.float64]) -> float:
    """Which error of a factor of all elements must show at one of them, whatever was rounded.

    Two honest values may be two bounds apart, and two bounds are allowed: a change by four of them
    must show, and the honest value that is changed is no smaller than the truth less one bound.
    """
    least = np.abs(truth, dtype=np.float64) - allowed
    some = np.isfinite(least) & (least > 0)
    return float((4 * allowed[some] / least[some]).min(initial=math.inf))
