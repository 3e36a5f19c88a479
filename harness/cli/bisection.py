"""Output of a bisection on the command line."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from lockstep.harness.bisect.bisection import NO_OP, OF_TWIN, Bisection, allowed_at
from lockstep.harness.check.check import Plan
from lockstep.harness.judging.findings import TOKENS, Findings
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.locate.proof import Patched
from lockstep.harness.report.text import explain_finding, fault_of, site_name, where_to_look
from lockstep.harness.suites.parts.tensor_suite import detail_of

SHOWN = 5  # culprits with an explanation
SUITE = "logits"
MORE_SHOWN = 12  # culprits that are only named
PIECES = 3  # ranges of wrong neighbours on an axis


def bisection_of(plan: Plan, result: Bisection) -> Mapping[str, Any]:
    patched = result.patched
    return {
        "case": plan.case,
        "engine": plan.engine,
        "exit_code": result.exit_code,
        "layers": [
            {"layer": x.layer, "error": x.error, "guilty": list(x.guilty)} for x in result.layers
        ],
        "culprits": [detail_of(result.found, c) for c in result.culprits],
        "asked": result.asked,
        "as_stored": as_stored(result),
        "others": [v.summary for v in result.others],
        "not_deterministic": None if result.unsteady is None else str(result.unsteady),
        "confirmed": None if patched is None else patched.confirms,
        "worst_before_patch": None if patched is None else patched.before,
        "worst_after_patch": None if patched is None else patched.worst,
        "logits": None if result.logits is None else result.logits.summary,
        "other_graph": result.found.other_graph,
        "other_keys": list(result.found.other_keys),
        "not_shown": [str(site) for site in result.found.not_shown],
        "not_compared": [str(site) for site in result.not_compared],
    }


def bisection_lines(plan: Plan, result: Bisection) -> list[str]:
    found, first = result.found, result.first
    if first is None:
        return lines_without_culprit(plan, result)
    lines = [f"{plan.case}: {plan.engine} against {plan.oracle}, settings {plan.settings.name}"]
    if result.asked == OF_TWIN:
        lines.append(f"  of {result.asked}, so that smaller errors stand out")
    elif result.asked:
        lines.append(f"  {result.asked}; the usual run shows no wrong op")
    lines.append("  layer         output error   ops wrong on their own inputs")
    for layer in result.layers:
        name = "-" if layer.layer is None else str(layer.layer)
        lines.append(f"  {name:>5}   {layer.error:>18.1e}   {', '.join(layer.guilty) or '-'}")
    where = "outside the layers" if first.layer is None else f"layer {first.layer}"
    lines += ["", f"first divergence: {where}, {first.op} at {first.site.name}"]
    groups = alike_in_layers(result.culprits)
    for culprit, *others in groups[:SHOWN]:
        lines.append(f"  {explain_finding(culprit)}")
        about = (rows_of(culprit), *alone(culprit, found), in_other_layers(result, others))
        lines += [f"    {text}" for text in about if text]
        if culprit.parameters:
            lines.append(f"    {culprit.parameters}")
        if isfinite(culprit.err_local):  # a value of a wrong shape has no distance
            lines.append(
                f"    in the engine's own run the error is {found.err_in(culprit):.1e} at its "
                f"input and {found.err_out(culprit):.1e} at its output (of the largest value); on "
                f"{found.basis} it is {culprit.err_local:.2g}"
            )
        lines.append(f"    allowed because: {culprit.reason}")
        if culprit.at_fault != "subject":
            lines.append(f"    against float64, {fault_of(culprit.at_fault)}")
    if len(groups) > SHOWN:
        more = [culprit for group in groups[SHOWN:] for culprit in group]
        names = ", ".join(site_name(c.site) for c in more[:MORE_SHOWN])
        rest = len(more) - MORE_SHOWN
        lines.append(f"  also: {names}" + (f" and {rest} more" if rest > 0 else ""))
    lines += [found.rest, *other_graph(result), *filter(None, [result.in_f16])]
    return [*lines, *proof(plan, result), *as_stored(result)]


def as_stored(result: Bisection) -> list[str]:
    """Return lines on faults that appear only in the stored model, because the F32 twin hides
    them."""
    every = result.as_stored
    lines = [
        f"in the stored model {site_name(finding.site)} is off by {finding.err_local:.2g} "
        f"(allowed {allowed_at(finding):.2g}), in the twin by {there:.2g}: also check how its "
        "weights are decoded and multiplied"
        for finding, there in every[:SHOWN]
    ]
    return lines + [f"{len(every) - SHOWN} more sites differ like this"] * (len(every) > SHOWN)


def rows_of(culprit: SiteFinding) -> str:
    """Describe the op's weights and its wrong output rows; "" if the finding names neither."""
    pieces = pieces_of(culprit.outputs)
    rows = ", ".join(map(in_words, pieces[:8]))
    more = sum(map(len, pieces[8:]))
    is_one = "s are" if ", " in culprit.weight else " is"
    parts = [f"its weight{is_one} {culprit.weight}"] if culprit.weight else []
    if rows:
        parts.append(f"affected output rows: {rows}" + (f" and {more} more" if more > 0 else ""))
    return "; ".join(parts)


def pieces_of(indices: Sequence[int]) -> list[Sequence[int]]:
    """Cut indices into consecutive pieces, so that all rows of a head form one piece. Return no
    pieces for no indices."""
    if not indices:
        return []
    ends = [i for i, index in enumerate(indices) if i == 0 or indices[i - 1] != index - 1]
    return [indices[a:b] for a, b in zip(ends, [*ends[1:], len(indices)], strict=True)]


def in_words(piece: Sequence[int]) -> str:
    return str(piece[0]) if len(piece) == 1 else f"{piece[0]} to {piece[-1]}"


def proof(plan: Plan, result: Bisection) -> list[str]:
    """Return lines on the run in which the oracle's tensors replace the wrong ones."""
    if result.unsteady is not None:
        return [f"not confirmed: {plan.engine} is not deterministic: {result.unsteady}"]
    if result.failed:
        return [f"not confirmed: the patched run failed: {result.failed}"]
    return [] if result.patched is None else [confirmation(result.patched, result.found.not_put_in)]


def alone(culprit: SiteFinding, found: Findings) -> list[str]:
    """Return lines that name the wrong tokens or heads, if all others are right and the wrong ones
    form few ranges. Tokens are named by their position in the sequence, because row numbers of
    later batches start at 0."""
    names = culprit.axes.strip("()").split(", ")
    positions = found.positions(culprit)
    lines = []
    for axis, indices in culprit.alone.items():
        if -axis > len(names):
            continue
        name = names[axis]
        if name == TOKENS and positions is not None:
            name, indices = "positions", tuple(positions[i] for i in indices)
        pieces = pieces_of(indices)
        if len(pieces) <= PIECES:
            words = ", ".join(map(in_words, pieces))
            lines.append(f"only {name} {words}: all others agree")
    return lines


def alike_in_layers(culprits: Sequence[SiteFinding]) -> list[list[SiteFinding]]:
    """Group culprits that are the same node in several layers, with the same weights."""
    groups: dict[Any, list[SiteFinding]] = {}
    for culprit in culprits:
        own = f"blk.{culprit.layer}."
        weights = tuple(w for w in culprit.weight.split(", ") if w.startswith(own))
        same = tuple(weight.removeprefix(own) for weight in weights) or culprit.op
        key = culprit.site.name, culprit.site.step, culprit.at_fault, same
        groups.setdefault(key, []).append(culprit)
    return list(groups.values())


def in_other_layers(result: Bisection, others: Sequence[SiteFinding]) -> str:
    """Name the other layers with the same fault, and their errors."""
    if not others:
        return ""
    layers = sorted(other.layer for other in others if other.layer is not None)
    n_layers = len([layer for layer in result.layers if layer.layer is not None])
    which = ", ".join(map(in_words, pieces_of(layers)))
    where = (
        "every layer" if len(others) + 1 == n_layers else f"layer{'s' * (len(layers) > 1)} {which}"
    )
    off = [other.err_local for other in others if isfinite(other.err_local)]
    worst = f", off by up to {max(off):.2g}" if off else ""
    return f"the same ops are wrong in {where}{worst}"


def lines_without_culprit(plan: Plan, result: Bisection) -> list[str]:
    """Return the lines for a bisection without a wrong op: the parts that agree, the parts not
    compared, and the outputs that differ."""
    left_out = result.not_compared
    well = result.exit_code == 0 and not left_out and not result.found.other_graph
    lines = [f"{plan.case}: {result.found.rest}" + ("; nothing to find" if well else "")]
    if left_out:
        names = ", ".join(dict.fromkeys(site.name for site in left_out))
        lines.append(f"  not compared: {len(left_out)} ops: {names}")
    lines += [f"  {line}" for line in other_graph(result)]
    if result.logits is not None:
        own = f"{result.logits.status}: {result.logits.summary}"
        lines.append(f"  {result.found.what}s of the engine's own run: {own}")
    lines += [f"  {v.suite}: {v.summary}" for v in result.others]
    if result.unsteady is not None:
        lines.append(f"  {plan.engine} is not deterministic: {result.unsteady}")
        found = {"kind": "not-deterministic", "by_history": result.unsteady.left_over}
        lines.append(f"  {where_to_look([(SUITE, found)])}")
    elif result.exit_code == NO_OP:
        lines.append(f"  {where_to_look((v.suite, v.detail) for v in result.others)}")
    return lines


def other_graph(result: Bisection) -> list[str]:
    """Return lines on a difference between the graphs of the two files, which no single op can
    show."""
    where, keys = result.found.other_graph, result.found.other_keys
    lines = (
        [f"llama.cpp builds a different graph from the subject's file: {where}"] if where else []
    )
    if keys:
        more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
        lines.append(f"keys that differ in the subject's file: {', '.join(keys[:SHOWN])}{more}")
    return lines


def the_end(p: Patched) -> str:
    """Return a note that the last op was patched, which hides earlier faults; "" if it was not."""
    if not p.at_the_end:
        return ""
    return f"; patched {p.what}s are the oracle's own, so errors before them do not show"


def confirmation(p: Patched, left: int = 0) -> str:
    """Describe the run in which the oracle's tensors replaced the wrong ones. `left` is the number
    of wrong ops that cannot be replaced and may cause the remaining difference."""
    allowed = f"{p.allowed:.1e}"
    design = " from an honest run of another design" if p.otherwise else ""
    agrees = "agrees with an honest run of another design" if p.otherwise else "agrees"
    if not p.sites:
        return "not confirmed: the engine cannot continue with other values at these sites"
    if not p.differed and p.explains:
        return (
            f"confirmed by patching: with the oracle's tensor at {p.sites} sites the {p.what}s "
            f"differ{design} by {p.worst:.1e} of the largest, {p.before:.1e} before (honest runs "
            f"may differ by {allowed}){the_end(p)}"
        )
    if not p.differed:
        return (
            f"not confirmed: without a patch the {p.what}s differ by {p.before:.1e} of the "
            f"largest, and honest runs of this model may differ by {allowed}. Patching proves "
            "nothing here; the op was judged on its own inputs"
        )
    if p.agrees:
        return (
            f"confirmed by patching: with the oracle's tensor at {p.sites} sites the rest {agrees} "
            f"({p.what}s {p.worst:.1e} of the largest, {p.before:.1e} before; allowed {allowed})"
            f"{the_end(p)}"
        )
    if left:
        return (
            f"not confirmed: with the oracle's tensor at {p.sites} sites the {p.what}s differ by "
            f"{p.worst:.1e} of the largest, {p.before:.1e} before (allowed {allowed}); {left} "
            "more wrong ops cannot be patched"
        )
    return (
        f"patching {p.sites} sites: THE REST STILL DIFFERS: there is more to find ({p.what}s "
        f"{p.worst:.1e} of the largest, {p.before:.1e} before; allowed {allowed})"
    )
