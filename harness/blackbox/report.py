"""The result of a black-box bisection, as verdicts: one for each probe model."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from lockstep.harness.blackbox.asking import SUITE, SliceAnswer
from lockstep.harness.blackbox.bisection import BlackBoxBisection
from lockstep.harness.blackbox.layers import LayerRow
from lockstep.harness.blackbox.naming import Part
from lockstep.harness.blackbox.places import put_together
from lockstep.harness.check.check import Plan
from lockstep.harness.records import Verdict


def verdicts_of(plan: Plan, result: BlackBoxBisection, again: str) -> Iterator[Verdict]:
    """Yield the report's verdicts. again: the command that reproduces them."""

    def verdict(
        where: str, answer: SliceAnswer, fault: str, detail: Mapping[str, Any], how: str = ""
    ) -> Verdict:
        text = f"{where}{how}: {answer.summary or answer.status}"
        return Verdict(
            suite=SUITE,
            case=plan.case,
            status=answer.status,
            summary=f"{text}; {fault}" if fault else text,
            detail={"where": where, **as_of_logits(answer), **detail},
            key=f"{SUITE}/{where}/{fault}" if answer.differs else "",
            repro=again,
        )

    for row in result.rows:
        fault = "; ".join(map(describe_part, row.parts))
        yield verdict(name_of(row), row.answer, fault, slice_row(row), ", its slice in F32")
    for look in result.lenses:
        detail = {**figures_of(look.answer), "tensors": list(look.tensors), "weights": look.weights}
        tensors = f"tensors: {', '.join(look.tensors)}" if look.tensors else ""
        yield verdict(f"lens of {look.lens.type}", look.answer, tensors, detail)
    for seen in result.places:
        detail = {**figures_of(seen.answer), "tensors": list(seen.tensors)}
        pairs = "".join(f"; {text}" for text in put_together(result.places))
        tensors = f"tensors: {', '.join(seen.tensors)}{pairs}" if seen.tensors else ""
        yield verdict(f"{seen.look.words}, in their places", seen.answer, tensors, detail)
    yield verdict("the whole model", result.whole, "", figures_of(result.whole))
    for what, answer in result.in_f32.items():
        yield verdict(f"the whole model, {what}", answer, "", figures_of(answer))
    yield from (replace(other, repro=again) for other in result.others)
    for text in result.left_out:
        answer = SliceAnswer(status="not-compared", summary=text)
        yield verdict("left out", answer, "", {})


def name_of(row: LayerRow) -> str:
    name = "outside the layers" if row.layer is None else f"layer {row.layer}"
    return f"{name}, {row.what}" if row.what else name


def describe_part(part: Part) -> str:
    """Return the part's name, with the evidence if there is any."""
    return f"part: {part.name}, because {part.words}" if part.words else f"part: {part.name}"


def slice_row(row: LayerRow) -> dict[str, Any]:
    return {
        "layer": row.layer,
        "what": row.what,
        **figures_of(row.answer),
        "parts": [asdict(part) for part in row.parts],
        "asked": {words: figures_of(answer) for words, answer in (row.asked or {}).items()},
    }


def as_of_logits(answer: SliceAnswer) -> dict[str, float]:
    """Return the figures under the names of the suite `logits`; none for tokens and lenses."""
    if not answer.allowed:
        return {}
    worst = {"worst_relative_to_largest_logit": answer.worst}
    return {**worst, "allowed_relative": answer.allowed}


def figures_of(answer: SliceAnswer) -> dict[str, Any]:
    return {
        "status": answer.status,
        "summary": answer.summary,
        "worst": answer.worst,
        "allowed": answer.allowed,
    }
