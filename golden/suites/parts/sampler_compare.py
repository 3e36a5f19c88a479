"""The comparison of sampler vectors with any engine's lists, as documented on the page of the
vectors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.harness.adapters.parts.sampled_lists import SampledList
from lockstep.harness.records import SampleRequest

TOLERANCE = 5e-4
DIGITS, EXACT_DIGITS = 6, 12  # decimals of results and of inputs
COMPARE = (
    "leave out candidates at minus infinity; then the same ids in any order; each logit within the "
    "tolerance; each probability of this list, divided by their sum, within the tolerance; neither "
    "behind infill; the selected token is that of `selected` for the order of your list"
)
# after other stages, engines keep p of an earlier stage, or p that infill merged
CHOOSING = ("dist", "mirostat", "mirostat_v2", "adaptive_p")
Row = Mapping[str, Any]


def write_numbers(values: Any, digits: int = DIGITS) -> list[float | None]:
    """Return numbers as written in the document; minus infinity is null."""
    wide = np.asarray(values, np.float64).tolist()
    return [None if value == -np.inf else round(value, digits) + 0.0 for value in wide]


def read_numbers(values: Sequence[float | None]) -> list[float]:
    return [-np.inf if value is None else value for value in values]


def request_of(case: Mapping[str, Any]) -> SampleRequest:
    """Return the request for an engine that a case describes."""
    rows = case["rows"]
    return SampleRequest(
        chain=tuple(read_stage(stage) for stage in case["chain"]),
        logits=np.array([read_numbers(row["logits"]) for row in rows], np.float32),
        accepted=tuple(tuple(row["accepted"]) for row in rows),
        draws=np.array([[s.get("draw", np.nan) for s in row["stages"]] for row in rows]),
        prompt=tuple(case["prompt"]),
    )


def read_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(stage)
    if "seq_breakers" in stage:
        found["seq_breakers"] = tuple(text.encode() for text in stage["seq_breakers"])
    if "biases" in stage:
        numbers = read_numbers([bias for _, bias in stage["biases"]])
        tokens = [token for token, _ in stage["biases"]]
        found["biases"] = tuple(zip(tokens, numbers, strict=True))
    return found


def row_differences(chain: Sequence[Row], row: Row, lists: Sequence[SampledList]) -> str:
    """Return the first wrong stage with its error; "" if none is wrong."""
    for i, (stage, want, got) in enumerate(zip(chain, row["stages"], lists, strict=True)):
        text = stage_difference(stage["sampler"], want, got)
        if text:
            return f"stage {i + 1} ({stage['sampler']}): {text}"
    return ""


def stage_difference(sampler: str, want: Row, got: SampledList) -> str:
    merged = sampler == "infill"  # infill changes probabilities but not logits
    there = np.isfinite(got.logits) & (~(got.p <= 0) if merged else True)
    ids = got.ids[there].tolist()
    if sorted(ids) != sorted(want["ids"]):
        return f"{len(ids)} candidates are left, {sorted(ids)[:8]}, expected {want['ids'][:8]}"
    place = {token: at for at, token in enumerate(want["ids"])}
    order = [place[token] for token in ids]
    p = got.p[there].astype(np.float64)
    columns = [] if merged else [("logit", got.logits[there], want["logits"])]
    if sampler in CHOOSING and not np.isnan(p).all():
        columns.append(("probability", p / p.sum(), want["p"]))
    for what, mine, numbers in columns:
        off = np.abs(np.asarray(mine, np.float64) - np.array(numbers)[order])
        if not (off <= TOLERANCE).all():
            at = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
            expected = numbers[order[at]]
            return f"the {what} of {ids[at]} is {mine[at]:.9g}, expected {expected:.9g}"
    if "selected" in want and got.selected not in tokens_for(ids, want):
        return f"{got.selected} is selected, expected {want['selected']}"
    return ""


def tokens_for(ids: Sequence[int], want: Row) -> set[int]:
    """Return the tokens that may be selected from a list in this order. The vectors state the
    selection for three orders; another order may select any of those tokens."""
    by_logit = sorted(zip(want["logits"], want["ids"], strict=True), key=lambda x: (-x[0], x[1]))
    orders = {
        "listed": want["ids"],
        "by_id": sorted(ids),
        "by_logit": [token for _, token in by_logit],
    }
    chosen = want["selected"]
    known = {chosen[name] for name, order in orders.items() if list(order) == list(ids)}
    return known or {*chosen.values()}
