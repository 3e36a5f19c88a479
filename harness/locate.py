"""Find the ops that introduce an error, and tell them from those that only pass it on.

Four runs of one request: the oracle's; the subject's own, where errors pile up; the subject's with
the oracle's value put in at every site, where each op works on the oracle's inputs; the judge's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.trace import SITES
from harness.adapters import adapter_class
from harness.compare import largest, mismatch_between, worst_distance
from harness.judge import Judge, SiteFinding
from harness.records import Evaluation, Request, Site, Trace
from harness.suites.base import Context
from harness.tolerances import Bound, whole_run

Values = dict[Site, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """All sites in execution order, with the errors of the subject's own run beside them."""

    all: tuple[SiteFinding, ...]
    not_shown: tuple[Site, ...]  # the oracle does not show what the judge computed there
    free: dict[Site, float]  # subject's own run against the oracle, relative to the largest value
    tied: bool  # the output head is the embedding matrix

    @property
    def guilty(self) -> tuple[SiteFinding, ...]:
        return tuple(f for f in self.all if f.mismatch is not None)

    def err_out(self, finding: SiteFinding) -> float:
        return self.free.get(finding.site, float("inf"))

    def err_in(self, finding: SiteFinding) -> float:
        """The worst error among the op's inputs, in the subject's own run."""
        known = [self.free[s] for s in inputs_of(finding.site, self.n_layer) if s in self.free]
        return max(known, default=0.0)

    def gain(self, finding: SiteFinding) -> float:
        """How much larger the error leaves the op than it came in."""
        error_in = self.err_in(finding)
        return self.err_out(finding) / error_in if error_in else float("inf")

    @property
    def n_layer(self) -> int:
        return 1 + max((f.site.layer for f in self.all if f.site.layer is not None), default=-1)

    def last_agreement(self, finding: SiteFinding) -> str:
        """The last site before this one where even the subject's own run is within its bound."""
        last = "none"
        for other in self.all:
            if other.site == finding.site:
                return last
            limit = 2 * other.allowed / other.size if other.size else 0.0
            if other.mismatch is None and self.free.get(other.site, np.inf) <= limit:
                last = f"{other.site} (step {other.site.step})"
        return last

    def weight_of(self, finding: SiteFinding) -> str:
        """The tensor that the op multiplies by, or nothing."""
        weight = SITES[finding.site.name].weight
        if weight is None:
            return ""
        if weight == "output" and self.tied:
            weight = "token_embd"
        layer = finding.site.layer
        return f"{weight}.weight" if layer is None else f"blk.{layer}.{weight}.weight"

    def positions(self, finding: SiteFinding) -> dict[str, Any]:
        shown = list(finding.outputs[:16])
        return {"axis": "last", "indices": shown, "count": len(finding.outputs)}


def inputs_of(site: Site, n_layer: int) -> list[Site]:
    """The sites whose values the op at this site reads."""
    found = []
    for name in SITES[site.name].inputs:
        layer = site.layer
        if name == "residual":
            before = (n_layer if layer is None else layer) - 1
            layer, name = (before, "l_out") if before >= 0 else (None, "embd")
        found.append(Site(step=site.step, layer=layer, name=name))
    return found


def locate(context: Context) -> Findings:
    oracle = trace_of(context.oracle_run).values()
    context.progress("the subject's own run")
    free = trace_of(
        context.ask(context.subject, "evaluate", Request(batches=context.batches, capture=True))
    ).values()
    context.progress("the subject on the oracle's inputs")
    fixed = adapter_class(context.subject.name).fixed_sites
    replace = {site: value for site, value in oracle.items() if site.name not in fixed}
    request = Request(batches=context.batches, capture=True, replace=replace)
    local = trace_of(context.ask(context.subject, "evaluate", request)).values()
    context.progress("judging every op")
    judge = judged(context, context.batches, oracle, local)
    errors = {
        site: worst_distance(value, free[site]) / (largest(value) or 1.0)
        for site, value in oracle.items()
        if site in free
    }
    return Findings(
        all=tuple(judge.findings),
        not_shown=tuple(judge.missing),
        free=errors,
        tied="output.weight" not in context.reading.graph.weights,
    )


def judged(
    context: Context,
    batches: Sequence[Batch],
    oracle: Values,
    local: Values,
    given: Values | None = None,
) -> Judge:
    settings, model = context.settings, context.reading
    judge = Judge(
        oracle,
        local,
        lanes=context.lanes,
        n_threads=settings.n_threads,
        n_ctx=settings.n_ctx,
        generic=settings.generic,
        given=given,
    )
    model.ops, cache = judge, model.new_cache()
    for step, batch in enumerate(batches):
        judge.step = step
        model.decode(batch, cache, judge)
    return judge


def trace_of(run: Evaluation) -> Trace:
    if run.trace is None:
        raise ValueError("the run was asked for a trace and has none")
    return run.trace


@dataclass(frozen=True, kw_only=True, eq=False)
class Patched:
    """The subject's run with the oracle's tensors put in at the guilty sites only."""

    sites: int
    worst: float  # of the logits, relative to the largest
    bound: Bound
    agrees: bool


def patch(context: Context, found: Findings) -> Patched:
    """If the guilty ops are all there are, putting them right puts the logits right."""
    oracle = trace_of(context.oracle_run).values()
    fixed = adapter_class(context.subject.name).fixed_sites
    replace = {f.site: oracle[f.site] for f in found.guilty if f.site.name not in fixed}
    context.progress(f"putting the oracle's tensor in at {len(replace)} sites")
    request = Request(batches=context.batches, replace=replace)
    healed: Evaluation = context.ask(context.subject, "evaluate", request)
    expected, actual = (np.concatenate(run.logits) for run in (context.oracle_run, healed))
    bound = whole_run(context.noise.relative, largest(expected))
    return Patched(
        sites=len(replace),
        worst=worst_distance(expected, actual) / (largest(expected) or 1.0),
        bound=bound,
        agrees=mismatch_between(expected, actual, bound.allowed) is None,
    )
