"""Find the ops that introduce an error, and tell them from those that only pass it on.

Along llama.cpp's graph harness.locate_nodes does it. Along ours there are four runs of one
request: the oracle's; the subject's own, where errors pile up; the subject's with the oracle's
value put in at every site, where each op works on the oracle's inputs; the judge's.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.batch import Batch
from engine.trace import SITES
from harness.compare import largest, mismatch_between, worst_distance
from harness.designs import PER_EXPERT
from harness.findings import Findings, Values, all_outputs, errors_between
from harness.judge import Judge, SiteFinding
from harness.locate_nodes import locate_along_nodes
from harness.locate_segments import locate_segments, shows_only
from harness.records import Evaluation, Request, Site, Status, Trace
from harness.suites.base import Context, NoAnswer
from harness.tolerances import Bound, whole_run

COPIES = ("SET_ROWS",)  # ops whose result is their input: nothing is computed that could be wrong


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
    """Along our own graph, where there is one and the subject shows tensors of it, or llama.cpp's.

    Raises NoAnswer where an engine does not show what that takes.
    """
    if shows_only(context) and not context.facts.no_run:
        return locate_segments(context)
    if along_nodes(context):
        return locate_along_nodes(context)
    oracle = trace_of(context.oracle_run).values()
    context.progress("the subject's own run")
    free = trace_of(
        context.ask(context.subject, "evaluate", Request(batches=context.batches, capture=True))
    ).values()
    context.progress("the subject on the oracle's inputs")
    local, replace = on_values(context, context.batches, oracle)
    context.progress("judging every op")
    return judged(context, context.batches, oracle, local, replace, errors_between(oracle, free))


def along_nodes(context: Context) -> bool:
    """Whether llama.cpp's graph is the one to judge along. Raises NoAnswer if there is none."""
    if context.facts.no_run:
        raise NoAnswer("not-applicable", context.facts.no_run, {})
    if not context.facts.no_graph and context.subject_info.shows != ():
        return False
    if context.subject_info.computes_nodes:
        return True
    who = context.subject.name
    text = context.facts.no_graph or f"{who} does not show tensors"
    if context.facts.no_graph:
        text += f", and {who} cannot be asked for single ops of llama.cpp's graph"
    status: Status = "not-compared" if context.named else "not-applicable"
    raise NoAnswer(status, text, {})


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
    if along_nodes(context):
        return values if info.shows_nodes else {}
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
    memory = context.reading.new_memory()
    for step, batch in enumerate(batches):
        judge.step = step
        context.reading.decode(batch, memory, judge, ops=judge)
    graph = {*oracle, *judge.missing}
    n_layer = context.reading.graph.hparams.n_layer
    not_given = {
        finding.site
        for finding in judge.findings
        if finding.site not in hidden and not on_given(finding.site, graph, replace, n_layer)
    }
    apart = {f.site: f for f in judge.findings if f.site in hidden or f.site in not_given}
    blamed = {site: f for site, f in apart.items() if f.at_fault in ("oracle", "both")}
    found = tuple(
        wired(context, dataclasses.replace(f, at_fault="oracle") if f.site in blamed else f)
        for f in judge.findings
        if f.site not in apart or f.site in blamed
    )
    return Findings(
        all=found,
        not_shown=tuple(judge.missing),
        hidden=tuple(site for site in apart if site in hidden),
        not_given=tuple(site for site in apart if site in not_given),
        free=errors,
        values={s: oracle[s] for s in with_choices(found) if s in oracle},
        outputs=context.oracle_run.logits,
    )


def wired(context: Context, finding: SiteFinding) -> SiteFinding:
    """With what the op reads."""
    n_layer = context.reading.graph.hparams.n_layer
    inputs = tuple(inputs_of(finding.site, n_layer))
    return dataclasses.replace(finding, inputs=inputs, weight=weight_of(context, finding.site))


def weight_of(context: Context, site: Site) -> str:
    """The tensor that the op multiplies by, or nothing."""
    weight, layer = SITES[site.name].weight, site.layer
    if weight is None:
        return ""
    if weight == "output" and "output.weight" not in context.reading.graph.tensors.weights:
        weight = "token_embd"  # the output head is the embedding matrix
    return f"{weight}.weight" if layer is None else f"blk.{layer}.{weight}.weight"


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


def with_choices(findings: Sequence[SiteFinding]) -> Iterator[Site]:
    """The guilty sites, and for values of single experts which experts they are of, in order."""
    for finding in (f for f in findings if f.mismatch is not None):
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
    what: str = "logit"

    @property
    def explains(self) -> bool:
        """Whether nine tenths of a difference are gone: of honest noise most would be left."""
        return self.before > 0 and self.worst <= self.before / 10

    @property
    def confirms(self) -> bool:
        return self.agrees and (self.differed or self.explains)


def patch(context: Context, found: Findings) -> Patched:
    """If the guilty ops are all there are, putting them right puts the outputs right."""
    replace = found.values if found.own_inputs else replaceable(context, found.values)
    context.progress(f"putting the oracle's tensor in at {len(replace)} sites")
    own, healed = (
        all_outputs(context.ask(context.subject, "evaluate", request).logits)
        for request in (
            Request(batches=context.batches, embeddings=found.embeddings),
            Request(batches=context.batches, embeddings=found.embeddings, replace=replace),
        )
    )
    expected = all_outputs(found.outputs)
    size = largest(expected)
    bound = whole_run(context.noise.relative, size)
    return Patched(
        sites=len(replace),
        before=worst_distance(expected, own) / (size or 1.0),
        worst=worst_distance(expected, healed) / (size or 1.0),
        bound=bound,
        differed=mismatch_between(expected, own, bound.allowed) is not None,
        agrees=mismatch_between(expected, healed, bound.allowed) is None,
        what=found.what,
    )
