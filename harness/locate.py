"""Find the ops that introduce an error, and tell them from those that only pass it on.

Four runs of one request: the oracle's; the subject's own, where errors pile up; the subject's with
the oracle's value put in at every site, where each op works on the oracle's inputs; the judge's.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.trace import SITES
from harness.compare import largest, mismatch_between, worst_distance
from harness.designs import PER_EXPERT
from harness.judge import Judge, SiteFinding
from harness.records import Evaluation, Request, Site, Status, Trace
from harness.suites.base import Context, NoAnswer
from harness.tolerances import Bound, whole_run

Values = dict[Site, NDArray[Any]]
COPIES = ("SET_ROWS",)  # ops whose result is their input: nothing is computed that could be wrong


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """All sites in execution order, with the errors of the subject's own run beside them."""

    all: tuple[SiteFinding, ...]
    not_shown: tuple[Site, ...]  # the oracle does not show what the judge computed there
    hidden: tuple[Site, ...]  # the subject says that it does not show them
    not_given: tuple[Site, ...]  # the subject shows them, on inputs that could not be put in
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

    @property
    def rest(self) -> str:
        """What is not wrong, in words."""
        fine = sum(f.mismatch is None and f.compared > 0 for f in self.all)
        return f"on the oracle's inputs {fine} of {len(self.all)} ops agree"

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
    check_shows(context)
    oracle = trace_of(context.oracle_run).values()
    context.progress("the subject's own run")
    free = trace_of(
        context.ask(context.subject, "evaluate", Request(batches=context.batches, capture=True))
    ).values()
    context.progress("the subject on the oracle's inputs")
    local, replace = on_values(context, context.batches, oracle)
    context.progress("judging every op")
    return judged(context, context.batches, oracle, local, replace, errors_between(oracle, free))


def check_shows(context: Context) -> None:
    """Raises NoAnswer where there is no graph to judge along, or a subject shows no tensors."""
    if context.facts.no_run:
        raise NoAnswer("not-applicable", context.facts.no_run, {})
    status: Status = "not-compared" if context.named else "not-applicable"
    if context.facts.no_graph:
        text = f"{context.facts.no_graph}; lockstep shadow judges every op of llama.cpp's graph"
        raise NoAnswer(status, text, {})
    if context.subject_info.shows == ():
        raise NoAnswer(status, f"{context.subject.name} does not show tensors", {})


def errors_between(oracle: Values, subject: Values) -> dict[Site, float]:
    """The worst element of each site that both show, relative to the largest value."""
    return {
        site: worst_distance(value, subject[site]) / (largest(value) or 1.0)
        for site, value in oracle.items()
        if site in subject
    }


def on_values(
    context: Context, batches: tuple[Batch, ...], values: Values
) -> tuple[Values, Collection[Site]]:
    """The subject's trace where it goes on with these values, and the sites that they were put in.

    The last one is replaced by numbers that no engine computes: nothing reads them. Raises NoAnswer
    where it shows these, for then it shows nowhere what it computed on the values put in.
    """
    replace = replaceable(context, values)
    last = next((site for site in reversed(values) if shows(context, site)), None)
    if last in replace and replace[last].dtype.kind == "f":
        ramp = np.linspace(-1, 1, replace[last].size, dtype=np.float32)
        replace[last] = ramp.reshape(replace[last].shape)
    request = Request(batches=batches, capture=True, replace=replace)
    local = trace_of(context.ask(context.subject, "evaluate", request)).values()
    if last in local and last in replace and np.array_equal(local[last], replace[last]):
        text = f"{context.subject.name} shows at {last} what was put in, not what it computed"
        raise NoAnswer("malformed", f"{text}: none of its ops can be judged", {"site": str(last)})
    return local, replace.keys()


def replaceable(context: Context, values: Values) -> Values:
    """Of these values those that the subject can go on with instead of its own."""
    info = context.subject_info
    return {s: v for s, v in values.items() if s.name not in info.fixed and shows(context, s)}


def shows(context: Context, site: Site) -> bool:
    names = context.subject_info.shows
    return names is None or site.name in names


def judged(
    context: Context,
    batches: Sequence[Batch],
    oracle: Values,
    local: Values,
    replace: Collection[Site],
    errors: dict[Site, float],
    given: Values | None = None,
) -> Findings:
    """Every site of the batches, judged on the oracle's values.

    local: the subject's, who went on with the oracle's values at the sites in `replace`; errors:
    those of its own run. given: what both went on with at some sites, whatever they had computed.
    """
    settings = context.settings
    hidden = {site: value for site, value in oracle.items() if not shows(context, site)}
    judge = Judge(
        oracle,
        hidden | local,
        lanes=context.lanes,
        n_threads=settings.n_threads,
        n_ctx=settings.n_ctx,
        generic=settings.generic,
        given=given,
    )
    cache = context.reading.new_cache()
    for step, batch in enumerate(batches):
        judge.step = step
        context.reading.decode(batch, cache, judge, ops=judge)
    graph = {*oracle, *judge.missing}
    n_layer = context.reading.graph.hparams.n_layer
    not_given = {
        finding.site
        for finding in judge.findings
        if finding.site not in hidden and not on_given(finding.site, graph, replace, n_layer)
    }
    apart = {f.site: f for f in judge.findings if f.site in hidden or f.site in not_given}
    blamed = {site: f for site, f in apart.items() if f.at_fault in ("oracle", "both")}
    return Findings(
        all=tuple(
            dataclasses.replace(f, at_fault="oracle") if f.site in blamed else f
            for f in judge.findings
            if f.site not in apart or f.site in blamed
        ),
        not_shown=tuple(judge.missing),
        hidden=tuple(site for site in apart if site in hidden),
        not_given=tuple(site for site in apart if site in not_given),
        free=errors,
        tied="output.weight" not in context.reading.graph.weights,
    )


def on_given(site: Site, graph: Collection[Site], given: Collection[Site], n_layer: int) -> bool:
    """Whether all that the op at a site reads was put in; a copy of such values is as good."""
    return all(
        source in given
        or (SITES[source.name].op in COPIES and on_given(source, graph, given, n_layer))
        for source in inputs_of(site, n_layer)
        if source in graph
    )


def trace_of(run: Evaluation) -> Trace:
    if run.trace is None:
        raise ValueError("the run was asked for a trace and has none")
    return run.trace


def with_choices(guilty: Sequence[SiteFinding]) -> Iterator[Site]:
    """The sites, and for values of single experts which experts they are of, in the same order."""
    for finding in guilty:
        if finding.site.name in PER_EXPERT:
            yield dataclasses.replace(finding.site, name="ffn_moe_topk")
        yield finding.site


@dataclass(frozen=True, kw_only=True, eq=False)
class Patched:
    """The subject's run with the oracle's tensors put in at the guilty sites only."""

    sites: int
    before: float  # the worst logit of its own run, relative to the largest
    worst: float  # of the patched run
    bound: Bound
    differed: bool  # before: if not, agreement afterwards confirms nothing
    agrees: bool

    @property
    def explains(self) -> bool:
        """Whether nine tenths of a difference are gone: of honest noise most would be left."""
        return self.before > 0 and self.worst <= self.before / 10

    @property
    def confirms(self) -> bool:
        return self.agrees and (self.differed or self.explains)


def patch(context: Context, found: Findings) -> Patched:
    """If the guilty ops are all there are, putting them right puts the logits right."""
    oracle = trace_of(context.oracle_run).values()
    replace = replaceable(context, {s: oracle[s] for s in with_choices(found.guilty)})
    context.progress(f"putting the oracle's tensor in at {len(replace)} sites")
    own, healed = (
        np.concatenate(context.ask(context.subject, "evaluate", request).logits)
        for request in (
            Request(batches=context.batches),
            Request(batches=context.batches, replace=replace),
        )
    )
    expected = np.concatenate(context.oracle_run.logits)
    size = largest(expected)
    bound = whole_run(context.noise.relative, size)
    return Patched(
        sites=len(replace),
        before=worst_distance(expected, own) / (size or 1.0),
        worst=worst_distance(expected, healed) / (size or 1.0),
        bound=bound,
        differed=mismatch_between(expected, own, bound.allowed) is not None,
        agrees=mismatch_between(expected, healed, bound.allowed) is None,
    )
