"""Output of a diagnosis on the command line: which known mistake reproduces the engine's
answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockstep.harness.runs.commands import diagnose_command
from lockstep.harness.runs.hints import LAYER, black_box_command, can_be_sliced

if TYPE_CHECKING:
    from lockstep.harness.check.check import Plan
    from lockstep.harness.diagnosis.diagnosis import Diagnosed, Diagnosis, Family, Match, Rows
    from lockstep.harness.diagnosis.differences import Difference
    from lockstep.harness.records import Verdict

SMALLER = (
    "models that Lockstep makes for single questions show errors below the noise of honest runs"
)
TIES = "a tie within the noise, where two right engines may diverge"
# Share of the squares of a difference, as a mistake must explain it (LEFT in diagnosis/race.py).
# The effect of zeroed logits explains half of any difference.
NEAR_SHARE = 0.75
SHOWN = 4  # mistakes that cannot be told apart
OF = {
    "metadata": "its metadata",
    "tokens": "its tokens",
    "runs": "its runs",
    "samplers": "its samplers",
}


def diagnosis_of(plan: "Plan", found: "Diagnosed") -> Mapping[str, Any]:
    return {
        "case": plan.case,
        "engine": plan.engine,
        "exit_code": found.exit_code,
        "diagnoses": [asdict(each) for each in found.of],
        "not_answered": list(found.missing),
        "repro": diagnose_command(plan),
    }


def diagnosis_lines(plan: "Plan", found: "Diagnosed") -> Iterator[str]:
    yield f"{plan.case}: {plan.engine}, settings {plan.settings.name}"
    for each in found.of:
        yield from (f"  {line}" for line in aspect_lines(each))
    yield from (f"  not answered: {text}" for text in found.missing)
    sliced = can_be_sliced(plan, found.engines)
    if found.exit_code == 0:
        more = f"; {SMALLER}: " if sliced else ""
        ties = any(row.not_compared for each in found.of for row in each.rows)
        every = "all compared answers are" if ties else "all of these answers are"
        yield f"no mistake to name: {every} the right engine's{more}"
        if sliced:
            yield f"  {black_box_command(plan)}"
    elif sliced and any(each.aspect == "runs" and each.status != "right" for each in found.of):
        yield f"{LAYER}: {black_box_command(plan)}"


def aspect_lines(each: "Diagnosis") -> Iterator[str]:
    yield f"{OF[each.aspect]}: {as_the_right(each.rows)} agree with the right engine's"
    if ties := sum(row.not_compared for row in each.rows):
        yield f"  {ties} more tokens were not compared: they follow {TIES}"
    yield from (f"  differs: {describe_difference(one)}" for one in each.differences)
    yield from result_lines(each)


def verdicts_of(plan: "Plan", found: "Diagnosed", again: str) -> "Iterator[Verdict]":
    """Yield the report's verdicts. `again` is the command that reproduces them."""
    from lockstep.harness.diagnosis import report

    said = {each.aspect: list(aspect_lines(each)) for each in found.of}
    return report.verdicts_of(plan, found, again, said)


def as_the_right(rows: "Sequence[Rows]") -> str:
    return ", ".join(f"{row.right} of {row.compared} {row.unit}" for row in rows)


def describe_difference(one: "Difference") -> str:
    return f"{one.asked}: got {one.got}, expected {one.expected}" if one.got else one.asked


def result_lines(each: "Diagnosis") -> Iterator[str]:
    if each.status == "not-compared" and any(not row.nothing for row in each.rows):
        yield "  honest runs of this model overflow, so there is no limit"
    if each.unsteady:
        yield f"  {each.unsteady}: no constant mistake gives such answers"
    if each.status == "none":
        far = ""
        if each.closest:
            near = each.closest.left < 0.01  # probably two mistakes, or another variant of this one
            left = "less than 1%" if near else f"{each.closest.left:.0%}"
            other = "" if near else ", so the mistake is a different one, or there are two"
            far = f"; the closest leaves {left} of the difference{other}: {words_of(each.closest)}"
        yield f"  none of {each.tried} known mistakes reproduces all of these answers{far}"
        if each.family and not each.closest:
            yield f"  {describe_family(each.family)}"
    if not each.named:
        return
    if each.status == "few":  # the answers are close calls, which any small error may tip
        title = "too few answers differ to name one mistake; one that reproduces them"
    else:
        every = ", ".join(f"{row.compared} of {row.compared} {row.unit}" for row in each.rows)
        title = f"DIAGNOSIS ({every})"
    yield from of_group(each.named, title, "cannot be told apart by these answers")
    yield from of_group(each.also, "also within the noise", "are farther from them")


def describe_family(family: "Family") -> str:
    """Describe the nearest known mistake, if none is near enough to be named as the cause."""
    if family.alike:
        share = (
            f"{family.alike**2:.0%} of the difference has the shape of its effect, at a different "
            "strength"
        )
    else:
        share = (
            f"it reproduces {family.explains} of these answers, and gets {family.breaks} others "
            "wrong"
        )
    words = f"{family.name}, {words_of(family.nearest)}: {share}"
    is_near = family.alike**2 >= NEAR_SHARE if family.alike else True
    return (
        f"nearest family by effect: {words}"
        if is_near
        else f"no known mistake comes near; the nearest: {words}"
    )


def of_group(group: "Sequence[Match]", title: str, more: str) -> Iterator[str]:
    if len(group) == 1:
        yield f"  {title}: {words_of(group[0])}"
    elif group:
        yield f"  {title}: {len(group)} known mistakes, which {more}:"
        yield from (f"    {words_of(match)}" for match in group[:SHOWN])
        if len(group) > SHOWN:
            yield f"    and {len(group) - SHOWN} more"


def words_of(match: "Match") -> str:
    seen = f"; seen as: {match.effect}" if match.effect else ""
    source = f"; as in {match.source}" if match.source else ""
    return f"{match.mistake} ({match.engine}{seen}{source})"
