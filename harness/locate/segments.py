"""Finds wrong segments in an engine that shows tensors. Each segment is judged from the engine's
own inputs, along llama.cpp's graph (harness.graph.segments)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.choices import choices
from lockstep.engine.node import Node
from lockstep.harness.context.suite import Context
from lockstep.harness.graph.aliases import places_by_site, rename_wires
from lockstep.harness.graph.expert_choice import CHOOSE, used_of
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.shown import cells_in_use, part_shown
from lockstep.harness.graph.watched import Seen
from lockstep.harness.graph.ways import Honest
from lockstep.harness.graph.wiring import Wire, wires_of
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.conversions import is_quantised
from lockstep.harness.judging.findings import Findings, Values
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.judging.stored import all_in_halves
from lockstep.harness.locate.nodes import build_of, record_program, run_through
from lockstep.harness.locate.other_names import with_other_name
from lockstep.harness.locate.ubatches import by_ubatches, outputs_of_graphs, which_rows
from lockstep.harness.processes.ahead import Ahead, may_fork
from lockstep.harness.records import Evaluation, Mismatch, Request, Site
from lockstep.harness.sites import SITES

LOGITS = "result_output"
# numbers beyond 65504 are infinite in F16, and later values are NaN
TOO_LARGE = "infinite because they were stored in F16, so they cannot be used as inputs"
UNJUDGED_IDS = (
    "ids of a choice that the engine does not show, which may be in any order; show the "
    "choice as well"
)
NOT_BY_TOKEN = (
    "llama.cpp splits these batches by sequence, and Lockstep cannot tell which numbers "
    "belong to a part"
)
UNLIKE = "this value is the engine's answer, and the engine shows a different one under this name"
FEW = 4  # nodes of one kind that are named
CACHES = ("k_cache", "v_cache")


def shows_tensors(context: Context) -> bool:
    """Return True if the engine shows any tensor besides its logits."""
    shown = context.subject_info.shows
    return shown is None or bool({*shown} - {LOGITS})


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnRun:
    """The values of the subject's own run, by their places in llama.cpp's graph of that run."""

    program: Program
    places: Mapping[Site, Place]
    wires: Mapping[Place, Wire]
    values: Values
    cut: Collection[Site]  # sites with omitted rows
    apart: Collection[Site]  # sites of split batches whose values cannot be split
    given: Values  # values that were put into the engine's run
    shown: Mapping[Place, NDArray[Any]]  # values that can be put into runs
    others: Sequence[Mapping[Place, NDArray[Any]]]  # different values under other names
    unlike: Mapping[Place, NDArray[Any]]  # answers that differ from the shown value
    stored: Mapping[Place, str]
    unfit: Mapping[Place, Mismatch]
    lost: Collection[Place]


def locate_segments(context: Context, given: Values | None = None) -> Findings:
    """Find the wrong segments. `given` holds replacement values at some sites."""
    run = own_run(context, given)
    context.progress(f"judging the ops between {len(run.shown)} shown tensors")
    found, put_in = judge_own_run(context, run)
    found = replace(
        found, all=with_other_name(context, run.program, run.places, run.shown, found.all)
    )
    return replace(found, values=oracle_values(context, put_in, run.shown))


def own_run(context: Context, given: Values | None = None) -> OwnRun:
    program = record_program(context)
    places = places_by_site(program, wires_of(program))
    run = run_shown(context, program, given)
    assert run.trace is not None
    values = run.trace.values()
    absent = [places[site] for site in missing_promises(context, places, values)]
    kept, apart = Values(), set[Site]()
    if not context.subject_info.shows_nodes:
        kept, apart = by_ubatches(context.batches, program, places, values)
    rest = {site: value for site, value in values.items() if site not in apart}
    kept |= outputs_alone(context.batches, program, places, rest)
    shown, *others = by_place({**rest, **kept}, places)
    # a node that is shown under another of its names is not missing
    unfit = {place: Mismatch(kind="missing") for place in absent if place not in shown}
    answers = outputs_of_graphs(program, run.logits)
    unlike = {p: rows for p, rows in answers.items() if not is_same(rows, shown.get(p, rows))}
    shown = {**answers, **shown}
    for each in (*others, shown):
        unfit |= misshapen(program, each)
    kinds = context.subject.stored
    if not kinds and is_quantised(context.file):
        kinds = all_in_halves(values)
    stored = {places[s]: kind for s, kind in kinds.items() if s in places}
    lost = {
        place
        for each in (shown, *others)
        for place, value in each.items()
        if stored.get(place) == "F16" and np.isinf(value).any()
    }
    shown = {p: value for p, value in shown.items() if p not in unfit and p not in lost}
    return OwnRun(
        program=program,
        places=places,
        wires=rename_wires(wires_of(program), places),
        values=values,
        cut={*kept, *apart},
        apart=apart - {*kept},
        given=given or Values(),
        shown=shown,
        others=[{p: v for p, v in each.items() if p in shown} for each in others],
        unlike={p: rows for p, rows in unlike.items() if p in shown},
        stored=stored,
        unfit=unfit,
        lost=lost,
    )


def judge_own_run(
    context: Context, run: OwnRun, *, whole: bool = True
) -> tuple[Findings, dict[Place, Site]]:
    """Return the findings, and the sites where the oracle's values should replace wrong values. No
    engine is asked.

    `whole` also measures how errors accumulate through the run, which needs one more run of our
    engine.
    """
    wires, places = run.wires, run.places
    judge = SegmentJudge(
        program=run.program,
        wires=wires,
        file=context.file,
        build=build_of(context),
        shown=run.shown,
        stored=run.stored,
        given={places[site]: value for site, value in run.given.items()},
        seed=context.seed,
    )
    beside = whole and may_fork() and not context.facts.is_small
    ahead = Ahead(partial(errors_of, judge)) if beside else None
    try:
        found = {judge.place_of[f.site]: f for f in judge.findings()}
        for each in run.others:
            found |= wrong_by_another_name(judge, each)
        wrong = wrong_by_another_name(judge, run.unlike)
        found |= {p: replace(f, parameters=f.parameters or UNLIKE) for p, f in wrong.items()}
        # the errors computed ahead do not know the order of experts that was found
        known = None if ahead is None or judge.orders else ahead.result()
        errors = errors_of(judge) if known is None and whole else known
    finally:
        if ahead is not None:
            ahead.close()
    found = {p: with_rows(context, run, p, f) for p, f in found.items()}
    unfit = run.unfit.items()
    otherwise = tuple(site for site in run.values if site not in places)
    found |= {p: unusable(wires[p], judge.op_of[wires[p].site], m) for p, m in unfit}
    findings = Findings(
        all=tuple(found[place] for place in sorted(found)),
        not_shown=(),
        hidden=(),
        not_given=(),
        free={} if errors is None else errors_by_site(run, errors),
        values=Values(),
        embeddings=not run.program.has_result,
        skipped={no_such_node(otherwise, places): otherwise} if otherwise else {},
        unknown=of_no_use(context, run, judge),
        own_inputs=True,
        in_halves="" if context.subject.stored else ", ".join(sorted({*run.stored.values()})),
    )
    if judge.orders:  # the engine's experts are in another order than the oracle's
        return findings, {}
    fixed = context.subject_info.fixed
    names = {
        places[s]: s
        for s in run.values
        if places.get(s) in run.shown and s.name not in fixed and s not in run.cut
    }
    guilty = [place for place, f in found.items() if f.mismatch]
    put_in = sites_to_replace(guilty, names)
    return replace(findings, not_put_in=len({*guilty} - {*put_in})), put_in


def with_rows(context: Context, run: OwnRun, place: Place, found: SiteFinding) -> SiteFinding:
    """Add the numbers of the tokens to a finding in a part of a split batch, because each part
    numbers its own tokens."""
    if found.mismatch is None or found.site not in run.cut or place not in run.shown:
        return found
    text = which_rows(context.batches[place[0]], run.program, place, len(run.shown[place]))
    return replace(found, parameters=found.parameters or text)


def of_no_use(context: Context, run: OwnRun, judge: SegmentJudge) -> dict[str, tuple[Site, ...]]:
    unknown = {}
    if run.lost:
        unknown[TOO_LARGE] = tuple(run.wires[place].site for place in sorted(run.lost))
    if run.apart:
        unknown[NOT_BY_TOKEN] = tuple(run.apart)
    if judge.unjudged_ids:
        unknown[UNJUDGED_IDS] = judge.unjudged_ids
    if nowhere := shown_nowhere(context, run.places, run.values):
        who = context.subject.name
        unknown[f"{who} offers these nodes and does not show them"] = nowhere
    return unknown


def by_place(values: Values, places: Mapping[Site, Place]) -> Iterator[dict[Place, NDArray[Any]]]:
    """Yield the shown values by node. Further mappings hold the values of nodes that are shown
    under several names with different values."""
    names: dict[Place, list[NDArray[Any]]] = {}
    for site, value in values.items():
        if site in places:
            known = names.setdefault(places[site], [])
            if not any(is_same(value, one) for one in known):
                known.append(value)
    for number in range(max(1, *map(len, names.values()), 1)):
        yield {place: known[number] for place, known in names.items() if number < len(known)}


def outputs_alone(
    batches: Sequence[Batch], program: Program, places: Mapping[Site, Place], values: Values
) -> Values:
    """Return only the output rows of values that are shown for all tokens, if llama.cpp's node has
    only these rows. llama.cpp's last layer drops the other rows after attention, but an engine may
    keep them."""
    ne = {g.place(node): node.result.ne for g in program.graphs for node in g.nodes}
    found = Values()
    for site, value in values.items():
        outputs = batches[site.step].outputs
        n, asked = len(outputs), int(outputs.sum())
        if site not in places or asked == n or not value.ndim or len(value) != n:
            continue
        if value.size // n * asked == prod(ne[places[site]]):
            found[site] = value[outputs]
    return found


def is_same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return True if the values are equal, in any shape, because sites and llama.cpp's nodes have
    different shapes."""
    return a.size == b.size and np.array_equal(a.ravel(), b.ravel(), equal_nan=a.dtype.kind == "f")


def wrong_by_another_name(
    judge: SegmentJudge, others: Mapping[Place, NDArray[Any]]
) -> dict[Place, SiteFinding]:
    """Return the findings on nodes that are shown under a second name with other values."""
    again = replace(judge, shown={**judge.shown, **others}, orders={}) if others else None
    found = again.findings() if again else ()
    return {p: f for f in found if f.mismatch and (p := judge.place_of[f.site]) in others}


def run_shown(context: Context, program: Program, given: Values | None) -> Evaluation:
    context.progress("the subject's own run")
    request = Request(
        batches=context.batches,
        capture=True,
        embeddings=not program.has_result,
        replace=given or {},
    )
    run: Evaluation = context.ask(context.subject, "evaluate", request)
    return run


def missing_promises(context: Context, places: Mapping[Site, Place], values: Values) -> list[Site]:
    """Return the sites that an engine promises but does not show."""
    info, there = context.subject_info, {site.name for site in values}
    if info.partial or (info.shows is None and info.shows_nodes):
        return []
    names = there & ({*SITES} if info.shows is None else {*info.shows})
    return [site for site in places if site.name in names and site not in values]


def shown_nowhere(
    context: Context, places: Mapping[Site, Place], values: Values
) -> tuple[Site, ...]:
    """Return the sites of the graph whose promised names never appear. If a name appears at some
    site, its other sites count as missing (see `missing_promises`)."""
    info = context.subject_info
    absent = {*(info.shows or ())} - {site.name for site in values}
    return () if info.partial else tuple(site for site in places if site.name in absent)


def no_such_node(sites: Sequence[Site], places: Mapping[Site, Place]) -> str:
    there = {site.name for site in places}
    if all(site.name in there for site in sites):  # only the layer does not exist
        names = list(dict.fromkeys(map(str, sites)))
        more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
        return f"llama.cpp's graph has no node {', '.join(names[:FEW])}{more}"
    near = choices(next(site.name for site in sites if site.name not in there), sorted(there))
    return f"llama.cpp's graph has no such node, or has it in another order of axes {near}"


def sites_to_replace(guilty: Sequence[Place], names: Mapping[Place, Site]) -> dict[Place, Site]:
    """Return the sites where the oracle's values replace wrong values. A wrong cache must be
    replaced in every later step too, because a replaced value is read but not stored."""
    first = {(names[p].layer, names[p].name): p[0] for p in reversed(guilty) if p in names}
    return {
        place: site
        for place, site in names.items()
        if place in guilty
        or (site.name in CACHES and place[0] > first.get((site.layer, site.name), inf))
    }


def oracle_values(
    context: Context, names: Mapping[Place, Site], shown: Mapping[Place, NDArray[Any]]
) -> Values:
    """Return the oracle's values at these places, in the subject's shapes and names."""
    found = Values()

    def keep(node: Node) -> None:
        place = node.place
        if place in names:
            part = part_shown(node.value, shown[place].shape, node.name)
            if part is not None:
                found[names[place]] = part.astype(shown[place].dtype)

    if names:
        context.progress(f"the oracle's values at {len(names)} sites")
        run_through(context, keep)
    return found


def misshapen(program: Program, shown: Mapping[Place, NDArray[Any]]) -> dict[Place, Mismatch]:
    """Return a mismatch for each value with an impossible shape, or that does not cover all cells
    in use. Later ops cannot be computed from such a value, even if the shown part agrees."""
    nodes = {g.place(node): (g, node) for g in program.graphs for node in g.nodes}
    found = {}
    for place, value in shown.items():
        graph, node = nodes[place]
        expected = tuple(reversed(node.result.ne))
        part = part_shown(np.broadcast_to(np.int8(0), expected), value.shape, node.name)
        if part is None:
            text = f"expected {prod(expected)} elements {expected}, got {value.shape}"
            found[place] = Mismatch(kind="shape", detail=text)
        elif part.size < prod(expected):
            if node.op in CHOOSE:
                what, least = "experts", used_of(graph, node)
            else:
                what, least = "cells", cells_in_use(program, graph, node, value.shape)
            # the cells of a cache are the first axis
            there = value.shape[0 if node.op == "SET_ROWS" else -1]
            if there < least:
                text = f"{least} {what} are in use, and the engine shows {there}"
                found[place] = Mismatch(kind="shape", detail=text)
    return found


def unusable(wire: Wire, op: str, mismatch: Mismatch) -> SiteFinding:
    return SiteFinding(
        site=wire.site,
        op=op,
        err_local=inf,
        err_oracle=0.0,
        allowed=0.0,
        reason="the shape follows from the model and the tokens",
        size=0.0,
        mismatch=mismatch,
        at_fault="subject",
        layer=wire.layer,
        weight=", ".join(wire.weights),
    )


def errors_of(judge: SegmentJudge) -> NDArray[np.float64]:
    """Return the accumulated errors of the subject's own run: each shown value compared with our
    own whole run."""
    errors: dict[Place, float] = {}

    def keep(place: Place, ours: Seen) -> bool:
        errors[place] = worst_distance(ours.value, judge.shown[place]) / (
            largest(ours.value) or 1.0
        )
        return False

    judge.run(Honest(sizes=False), values={}, keep=keep)
    return np.array([errors[place] for place in judge.shown], np.float64)


def errors_by_site(run: OwnRun, errors: NDArray[np.float64]) -> dict[Site, float]:
    sites = (run.wires[place].site for place in run.shown)
    return dict(zip(sites, errors.tolist(), strict=True))
