"""Output about an engine that was tested on probe models."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.harness.runs.commands import diagnose_command
from lockstep.harness.runs.hints import (
    MISTAKE,
    MISTAKE_OF_A_SLICE,
    black_box_command,
    diagnose_of_a_slice,
)

if TYPE_CHECKING:
    from lockstep.harness.blackbox.asking import SliceAnswer
    from lockstep.harness.blackbox.bisection import BlackBoxBisection
    from lockstep.harness.blackbox.layers import LayerRow
    from lockstep.harness.blackbox.looking import Looked
    from lockstep.harness.check.check import Plan
    from lockstep.harness.cli.terminal import Terminal

AGREE = "every slice, {weights}the whole model and the further runs of check agree"
ENDS = {
    1: "DIVERGENCE",
    3: "INCOMPLETE: some comparisons were not possible",
}
SHOWN_TENSORS = 4
SHOWN_LENSES = 3  # lenses of one type that differ
SHOWN = 200  # characters of an engine's message


def bisect(plan: "Plan", folder: str, out: "Terminal") -> "BlackBoxBisection":
    """Run a black-box bisection, print it, and return it."""
    from lockstep.harness.blackbox.run import bisect_one
    from lockstep.harness.parallel.children import result_of

    work = partial(bisect_one, plan, Path(folder))
    result: BlackBoxBisection = result_of(work, partial(out.progress, plan.case))
    if out.as_json:
        out.json(report_of(plan, result))
    else:
        for text in lines_of(plan, result):
            out.line(text)
    return result


def report_of(plan: "Plan", result: "BlackBoxBisection") -> Mapping[str, Any]:
    from lockstep.harness.blackbox.places import put_together
    from lockstep.harness.blackbox.report import figures_of, slice_row

    return {
        "case": plan.case,
        "engine": plan.engine,
        "exit_code": result.exit_code,
        "slices": [slice_row(row) for row in result.rows],
        "lenses": [
            {"type": look.lens.type, "weights": look.weights, **figures_of(look.answer)}
            | {"tensors": list(look.tensors)}
            for look in result.lenses
        ],
        "places": [
            {"matrices": seen.look.words, **figures_of(seen.answer), "tensors": list(seen.tensors)}
            for seen in result.places
        ],
        "together": list(put_together(result.places)),
        "whole": figures_of(result.whole),
        "in_f32": {what: figures_of(answer) for what, answer in result.in_f32.items()},
        "others": [f"{v.suite}: {v.summary}" for v in result.others],
        "left_out": list(result.left_out),
        "no_places": result.no_places,
        "repro": black_box_command(plan),
    }


def lines_of(plan: "Plan", result: "BlackBoxBisection") -> Iterator[str]:
    from lockstep.harness.blackbox.places import put_together
    from lockstep.harness.blackbox.report import name_of

    yield f"{plan.case}: {plan.engine} against {plan.oracle}, settings {plan.settings.name}"
    yield "  slice in F32                             differ by    allowed   at fault"
    for row in result.rows:
        fault = "; ".join(part.name for part in row.parts) or "-"
        yield f"  {name_of(row):<38} {figures(row.answer)}   {fault}"
    if result.lenses:
        yield "  lens (as stored)                           weights              at fault"
        for kind in dict.fromkeys(look.lens.type for look in result.lenses):
            same = [look for look in result.lenses if look.lens.type == kind]
            weights = sum(look.weights for look in same)
            yield f"  {kind:<38} {weights:>11,}              {fault_of(same)}"
    if result.places:
        yield "  in its place (as stored)                 differ by    allowed   at fault"
    for seen in result.places:
        fault = ", ".join(seen.tensors[:SHOWN_TENSORS]) or "-"
        fault += ", ..." if len(seen.tensors) > SHOWN_TENSORS else ""
        yield f"  {seen.look.words:<38} {figures(seen.answer)}   {fault}"
    yield from (f"  {'':<38} together: {text}" for text in put_together(result.places))
    yield f"  {'the whole model':<38} {figures(result.whole)}"
    for what, answer in result.in_f32.items():
        name = what.partition(",")[0].removeprefix("the model made with ")
        yield f"  {'whole: ' + name:<38} {figures(answer)}"
    yield ""
    yield from ends(plan, result)


def ends(plan: "Plan", result: "BlackBoxBisection") -> Iterator[str]:
    """Yield the lines below the table."""
    if not result.rows:  # the engine is not deterministic, and no further question was asked
        yield f"the whole model: {result.whole.summary}"
    yield from reasons(result.rows, result.lenses)
    if (types := only_as_stored(result)) and result.whole.differs:
        yield (
            "every slice agrees in F32, and the stored model differs: the engine decodes or "
            f"multiplies weights of {types} differently, or connects the layers differently"
        )
    for what, answer in result.in_f32.items():
        if not answer.agrees:
            yield f"the whole model, {what}: {answer.status}: {answer.summary[:SHOWN]}"
    yield from (f"further runs of check, {v.suite}: {v.summary}" for v in result.others)
    yield from where_else(result)
    yield from (f"not compared: {text}" for text in result.left_out)
    yield from (f"not asked: {text}" for text in [result.no_places] if text)
    seen = result.places or any(look.answer.agrees for look in result.lenses)
    weights = "every weight, " if seen else ""  # lists of tokens do not show weights
    yield ENDS.get(result.exit_code, AGREE.format(weights=weights))
    # diagnose reads only answers on the user's model, and its mistakes are deterministic
    if result.exit_code == 1 and result.rows:
        if result.whole.differs:
            yield f"{MISTAKE}: {diagnose_command(plan)}"
        elif command := diagnose_of_a_slice(plan, wrong_layers(result.rows), len(layers(result))):
            yield f"{MISTAKE_OF_A_SLICE}: {command}"


def layers(result: "BlackBoxBisection") -> set[int]:
    return {row.layer for row in result.rows if row.layer is not None}


def wrong_layers(rows: Sequence["LayerRow"]) -> list[int]:
    """Return the wrong layers; 0 also stands for parts outside the layers."""
    return [row.layer or 0 for row in rows if row.answer.differs]


def where_else(result: "BlackBoxBisection") -> Iterator[str]:
    """Yield where to look if every part agrees alone. This happens if only the whole model differs,
    if the engine chooses wrong tokens from right logits, or if only runs with several threads
    differ."""
    from lockstep.harness.report.text import CALLS, THREADS

    if result.rows and result.whole.differs and no_part_is_named(result):
        yield f"every part agrees alone, and the whole model differs: {result.whole.summary}"
    wrong = [verdict for verdict in result.others if verdict.status == "diverged"]
    if wrong and all("n_threads" in verdict.detail for verdict in wrong):
        yield f"with one thread every part is right: look at {THREADS}"
    elif wrong and {verdict.suite for verdict in wrong} == {"decode"} and result.whole.allowed:
        yield f"every part is right, and the logits are right: look at {CALLS}"


def no_part_is_named(result: "BlackBoxBisection") -> bool:
    """Return True if no wrong part was found, so that the summary of the whole answer is needed."""
    named = any(look.tensors for look in result.lenses) or any(s.tensors for s in result.places)
    return not named and not any(row.answer.differs for row in result.rows)


def only_as_stored(result: "BlackBoxBisection") -> str:
    """Name the weight types, if no lens could be compared and no slice is wrong; else return ""."""
    looked = any(look.answer.status in ("agreed", "diverged") for look in result.lenses)
    if looked or not result.rows or not all(row.answer.agrees for row in result.rows):
        return ""
    return ", ".join(dict.fromkeys(look.lens.type for look in result.lenses))


def fault_of(same: Sequence["Looked"]) -> str:
    """Name the wrong tensors in the lenses of one type, or the type itself if all its tensors are
    wrong."""
    wrong = list(dict.fromkeys(name for look in same for name in look.tensors))
    held = {stretch.tensor for look in same for stretch in look.lens.stretches}
    if not wrong:
        return "; ".join(dict.fromkeys(mark(look.answer) for look in same))
    if len(wrong) == len(held) > 1:
        return f"the format: all {len(held)} tensors of this type"
    return ", ".join(wrong[:SHOWN_TENSORS]) + (", ..." if len(wrong) > SHOWN_TENSORS else "")


def figures(answer: "SliceAnswer") -> str:
    if answer.status in ("agreed", "diverged") and answer.allowed:
        return f"{answer.worst:>11.1e} {answer.allowed:>10.1e}"
    return f"{mark(answer):>22}"


def mark(answer: "SliceAnswer") -> str:
    return {"agreed": "-", "diverged": "DIVERGED"}.get(answer.status, answer.status)


def numbers_of(rows: Sequence["LayerRow"]) -> str:
    """Write numbers as ranges, such as "0 to 3, 5, 8"."""
    runs: list[list[int]] = []
    for layer in (row.layer or 0 for row in rows):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def reasons(rows: Sequence["LayerRow"], lenses: Sequence["Looked"]) -> Iterator[str]:
    """Yield the reason for each wrong part, and notes on parts that were not compared."""
    from lockstep.harness.blackbox.report import name_of
    from lockstep.harness.report.text import cut

    same: dict[tuple[str, ...], list[LayerRow]] = {}  # rows by their texts
    for row in rows:
        found = [": ".join(filter(None, (part.name, part.words))) for part in row.parts]
        if row.answer.status not in ("agreed", "diverged"):
            found = [f"{row.answer.status}: {cut(row.answer.summary, SHOWN)}", *found]
        if found:
            alone = "" if row.layer is not None and not row.what else name_of(row)
            same.setdefault((alone, *found), []).append(row)
    for (_, *found), group in same.items():
        name = name_of(group[0]) if len(group) == 1 else f"layers {numbers_of(group)}"
        yield from (f"{name}: {text}" for text in found)
    for kind in dict.fromkeys(look.lens.type for look in lenses):
        of_it = [look.answer for look in lenses if look.lens.type == kind]
        wrong = [answer for answer in of_it if not answer.agrees]
        said = [*dict.fromkeys(f"{each.status}: {cut(each.summary, SHOWN)}" for each in wrong)]
        yield from (f"lens {kind}: {text}" for text in said[:SHOWN_LENSES])
        if len(said) > SHOWN_LENSES:  # a wrong decoder makes all its lenses wrong
            yield f"lens {kind}: {len(said) - SHOWN_LENSES} more like this are in the report"
