"""Facts in a verdict's detail, as words: the error, the limit, and the reason for the limit."""

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.harness.report.page.texts import exact, number, of_limit

Detail = Mapping[str, Any]
Fact = tuple[str, str]


def facts_of(row: Mapping[str, Any]) -> list[Fact]:
    """Return pairs (label, text), in a useful order for readers."""
    d = row["detail"]
    return [*how_far(d), *limits(d), *of_the_run(d), *whose(d)]


def in_short(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the error, the limit and the reason for the limit, for a line of a table."""
    d = row["detail"]
    far = d.get("worst_relative_to_largest_logit", d.get("err_local", d.get("margin")))
    if far is None and is_plain(d.get("actual")) and is_plain(d.get("expected")):
        far = f"{exact(d['actual'])}, expected {exact(d['expected'])}"
    allowed = d.get("allowed_relative", None if of_tokens(d) else d.get("allowed"))
    why = str(d.get("reason", ""))
    if allowed is None and row["status"] == "diverged" and not of_tokens(d):
        allowed, why = "nothing", why or "bits, ids and verdicts must be equal"
    return number(far) if far is not None else "", number(allowed) if is_plain(allowed) else "", why


def how_far(d: Detail) -> Iterator[Fact]:
    if "expected" in d and "actual" in d and is_plain(d["expected"]) and is_plain(d["actual"]):
        text = f"{exact(d['actual'])}, expected {exact(d['expected'])}"
        at = f"at {d['index']}: " if d.get("index") else ""
        yield "Worst element" if at else "Got", at + text
    if d.get("mismatched") and d.get("total"):
        yield "Elements off", f"{d['mismatched']:,} of {d['total']:,}"
    if "worst_relative_to_largest_logit" in d:
        share = number(d["worst_relative_to_largest_logit"])
        yield f"Worst {d.get('what', 'logit')}", f"off by {share} of the largest"
    if "worst_share" in d:
        yield "Worst share", of_limit(d["worst_share"], "the bound")
    if "err_local" in d:
        yield "How far", f"{number(d['err_local'])} on {d.get('basis', 'its inputs')}, absolute"
    if "margin" in d:
        text = f"the oracle scores the token {number(d['margin'])} lower than its own choice"
        yield "How far", text


def limits(d: Detail) -> Iterator[Fact]:
    if "allowed_relative" in d:
        yield "Allowed", f"{number(d['allowed_relative'])} of the largest {d.get('what', 'logit')}"
    elif "allowed" in d and is_plain(d["allowed"]) and not of_tokens(d):
        yield "Allowed", number(d["allowed"])
    if d.get("reason"):
        yield "Why this limit", str(d["reason"])


def of_the_run(d: Detail) -> Iterator[Fact]:
    if "err_in" in d and "err_out" in d:
        text = f"{number(d['err_in'])} at the input, {number(d['err_out'])} at the output"
        gain = f", gain {number(d['gain'])}" if "gain" in d else ""
        yield "In its own run", f"{text}{gain} (of the largest value)"
    if d.get("rest"):
        yield "Parts that agree", str(d["rest"])


def whose(d: Detail) -> Iterator[Fact]:
    labels = {
        "at_fault": "At fault, compared with float64",
        "weight": "Weight",
        "parameters": "Parameters",
    }
    labels |= {
        "asked": "Asked",
        "known": "Known as",
        "listed": "Listed because",
        "alone": "A third",
    }
    labels |= {"tensor": "Tensor", "type": "Type", "field": "Field", "symptom": "Symptom"}
    labels |= {"note": "Note"}
    for key, label in labels.items():
        if d.get(key) and is_plain(d[key]):
            yield label, str(d[key])
    positions = d.get("positions")
    if isinstance(positions, Mapping) and positions.get("indices"):
        text = ", ".join(map(str, positions["indices"]))
        more = positions.get("count", 0) - len(positions["indices"])
        yield "Output rows", text + (f" and {more} more" if more > 0 else "")


def of_tokens(d: Detail) -> bool:
    """Return True if a black box was compared by tokens. Then only its summary has the limit."""
    return "worst" in d and not d.get("allowed")


def is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
