"""Errors of logits by position, and the margins of the choices, for a report."""

from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.report.nodes import short
from lockstep.harness.suites.parts.pieces import pieces_of

MOST = 512  # figures of each kind; of more positions, only the worst of each group is kept


def by_position(context: Context, expected: F32, actual: F32, what: str) -> dict[str, Any]:
    """Return errors and margins by position, as a share of the largest logit of all positions. Both
    arrays are (outputs, vocabulary).

    `margin`: the distance of the oracle's greedy token from the next one. If the margin is less
    than twice the error, the engines may choose different tokens. `first_other`: the first place
    where they choose different tokens.
    """
    if expected.shape != actual.shape or not expected.size:
        return {}
    size, every = largest(expected) or 1.0, -(-len(expected) // MOST)
    errors = [worst_distance(a, b) / size for a, b in zip(expected, actual, strict=True)]
    groups = range(0, len(errors), every)
    found: dict[str, Any] = {"every": every} if what == "logit" else {"every": every, "what": what}
    found["error"] = [short(max(errors[at : at + every])) for at in groups]
    if what != "logit" or expected.shape[-1] < 2 or not np.isfinite(expected).all():
        return {"by_position": found}
    margins = [margin_of(row) / size for row in expected]
    found["margin"] = [short(min(margins[at : at + every])) for at in groups]
    pairs = [
        # one row at a time, because copies of all rows are large
        [choice_of(x[i]) for x in (expected, actual)]
        for i in range(len(expected))
    ]
    other = [i for i, (a, b) in enumerate(pairs) if a != b]
    found["other_choices"] = len(other)
    if other:
        found["first_other"] = {"position": other[0], **choice(context, *pairs[other[0]])}
    return {"by_position": found}


def margin_of(row: F32) -> float:
    at = int(row.argmax())
    others = (part.max() for part in (row[:at], row[at + 1 :]) if part.size)
    return float(row[at]) - float(max(others))


def choice_of(row: F32) -> int:
    """Return the index of the first largest number in the row. NaN does not count."""
    at = int(row.argmax())
    return int(np.nan_to_num(row, nan=-np.inf).argmax()) if np.isnan(row[at]) else at


def choice(context: Context, expected: int, actual: int) -> dict[str, Any]:
    """Describe two ids with their texts."""
    texts = pieces_of(context, [expected, actual]) or [None, None]
    found: dict[str, Any] = {"expected": expected, "actual": actual}
    return found | {"expected_text": texts[0], "actual_text": texts[1]}
