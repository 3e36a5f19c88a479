"""Judge every op alone: run the graph in float64 on the oracle's own inputs, and bound each op.

The judge is a third run of the graph. At every site it has three values for one op on the same
inputs: its own (float64 inside, ggml's deliberate roundings kept), the oracle's, and the
subject's, who was made to work on the oracle's inputs too. Then it hands the oracle's value on.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops.mirror import Mirror, like
from engine.ops.products import product_and_size, run_of
from engine.ops.reference import I32, Bools, RopeParams
from engine.quants.base import F32
from engine.trace import SITES
from engine.weights import Weight
from harness import tolerances
from harness.comparable import incomparable
from harness.compare import mismatch_between, worst_distance
from harness.designs import (
    PER_EXPERT,
    Other,
    agrees,
    chosen,
    experts_in_any_order,
    filled,
    gathered,
    mixture_bound,
    norms_of_float32_sums,
    order_of,
    plain_product,
    reordered,
    scores_bound,
    softmax_of_float32_sum,
    swiglu_ways,
    where_limited,
    wide_attention,
    wide_mixture,
    wide_scores,
)
from harness.records import Mismatch, Site
from harness.rope_designs import rotated, ways_to_turn, yarn_slack
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


class Judge(Mirror):
    """Ops that remember the bound of what they computed last, and a probe that uses it."""

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
        super().__init__(n_threads, n_ctx, generic)
        self.oracle, self.subject, self.given = oracle, subject, given or {}
        self.lanes = lanes
        self.step = 0
        self.bound = EXACT
        self.others: Iterable[Other] = ()  # what other honest engines compute here, on demand
        self.choose: Callable[[NDArray[Any]], NDArray[Any]] | None = None  # see `top_k`
        self.order: NDArray[np.int64] | None = None  # of the subject's experts in this layer
        self.findings: list[SiteFinding] = []
        self.missing: list[Site] = []  # not judged: the oracle shows not them, or not their inputs
        self.hidden: set[Site] = set()  # what the oracle does not show
        self.residual: Site | None = None  # what the next layer begins with

    # --- the probe ------------------------------------------------------------------------

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        site = Site(step=self.step, layer=layer, name=name)
        bound, others, choose = self.bound, self.others, self.choose
        self.bound, self.others, self.choose = EXACT, (), None
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
        found = self.finding(site, info.op, value, oracle, subject, bound, others)
        self.findings.append(replace(found, layer=layer, axes=info.shape))
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

    # --- the ops, each with its bound --------------------------------------------------------

    def linear(self, x: F32, weight: Weight) -> F32:
        acts = self.activations(x, weight)
        out, size = product_and_size(acts, self.sums(x, weight), weight)
        run = run_of(weight.format)
        self.bound = tolerances.product(
            size, out, weight.shape[-1], self.lanes, run, filled(acts, run)
        )
        if not np.array_equal(acts, x):
            # float products in any order: a scalar loop over decoded weights is honest too
            self.others = [lambda _: plain_product(x.astype(np.float64), weight)]
        return out

    def linear_id(self, x: F32, weight: Weight, ids: I32) -> F32:
        out = np.empty((*ids.shape, weight.shape[1]), np.float32)
        allowed = np.empty(out.shape)
        plains: list[tuple[Bools, Other]] = []
        rows = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
        for expert in np.unique(ids):
            chosen = ids == expert
            out[chosen] = self.linear(rows[chosen], weight.part(int(expert)))
            allowed[chosen] = self.bound.allowed
            plains += [(chosen, other) for other in self.others]
        self.bound = Bound(allowed, self.bound.reason)
        self.others = [lambda shown: gathered(out.shape, plains, shown)] if plains else []
        return out

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        out = super().rms_norm(x, weight, eps)
        self.bound = tolerances.rms_norm(x, out)
        self.others = norms_of_float32_sums(x, weight, eps)
        return out

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        slack = yarn_slack(positions, params)
        out, self.bound = rotated(x, *self.rotations(positions, params), slack)
        self.others = ways_to_turn(x, positions, params)
        return out

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        out = super().kq(q, k)
        self.bound = scores_bound(like(q, k), k, out, self.lanes)
        if like(q, k) is not q:  # an engine need not convert its queries to the cache's type
            self.others = [lambda _: wide_scores(q, k)]
        return out

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        out = super().soft_max(x, scale, visible)
        self.bound = bound = tolerances.soft_max(x, out, scale, visible)
        self.others = [partial(softmax_of_float32_sum, out, bound)]
        return out

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        out = super().kqv(p, v)
        self.bound = mixture_bound(like(p, v), v, out, self.lanes)
        if like(p, v) is not p:  # nor its weights
            self.others = [lambda _: wide_mixture(p, v)]
        return out

    def flash_attn(
        self, q: F32, k: NDArray[Any], v: NDArray[Any], scale: float, visible: Bools
    ) -> F32:
        result = self.flash.attend(q, k, v, scale, visible)
        self.bound = tolerances.flash_attn(result.out, result.radius)
        # an engine need not accumulate in F16, nor convert its queries to it
        self.others = [
            lambda _: wide_attention(q, k, v, scale, visible),
            lambda _: wide_attention(like(q, k), k, v, scale, visible),
        ]
        return result.out

    def swiglu(self, gate: F32, up: F32) -> F32:
        out = super().swiglu(gate, up)
        self.bound = tolerances.swiglu(out, up)
        self.others = swiglu_ways(gate, up, out)
        return out

    def top_k(self, probs: F32, n: int) -> I32:
        """Which of several right answers is meant only shows in what an engine shows."""
        out = super().top_k(probs, n)
        self.choose = lambda shown: chosen(probs, out, shown)
        return out

    def normalise(self, weights: F32) -> F32:
        out = super().normalise(weights)
        self.bound = tolerances.normalise(out)
        return out

    def sum_experts(self, x: F32) -> F32:
        self.others = [lambda _: experts_in_any_order(x)]
        return super().sum_experts(x)


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
