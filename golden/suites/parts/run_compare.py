"""Comparison of an engine's matrices and greedy ids with those of a golden run."""

from collections.abc import Sequence

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.golden.compact import HeldMatrix
from lockstep.golden.honest import LOGITS
from lockstep.golden.suites.base import Vectors, Verdicts
from lockstep.golden.suites.parts.run_form import WAYS
from lockstep.harness.records import Mismatch, Verdict


def held_of(vectors: Vectors, name: str, way: str) -> HeldMatrix:
    (row,) = (row for row in vectors.document["shown"] if row["name"] == name)
    start = f"{name}/{way}."
    mine = {k.removeprefix(start): v for k, v in vectors.tensors.items() if k.startswith(start)}
    columns = vectors.tensors[f"{name}/columns"]
    return HeldMatrix(tensors=mine, columns=columns, allowed=row["allowed"])


def compare_ways(vectors: Vectors, name: str, got: F32, verdict: Verdicts) -> Verdict:
    """Compare a matrix with the accepted results of the golden, one of which must match in all
    parts."""
    (row,) = (row for row in vectors.document["shown"] if row["name"] == name)
    if got.shape != (row["rows"], row["width"]):
        text = f"{name} is {got.shape}, expected {(row['rows'], row['width'])}"
        return verdict("diverged", text, key=f"shape/{name}")
    detail = {"name": name, "reason": row["reason"], "largest": row["largest"]}
    wrong = {}
    for way in WAYS:
        held = held_of(vectors, name, way)
        found = list(held.differences(got))
        if not found:
            share = held.share(got)
            text = (
                f"{name}: {row['rows']} rows of {row['width']}, at most {share:.2f} of what is "
                f"allowed ({row['noise'] * 2:.1e} of the largest)"
            )
            return verdict("agreed", text, {**detail, "way": way, "worst_share": share})
        wrong[way] = found
    way = min(wrong, key=lambda way: len(wrong[way]))
    text = f"{name}: {'; '.join(sentence(*each) for each in wrong[way][:2])}"
    detail |= {"way": way, "parts": [part for part, _ in wrong[way]]}
    return verdict("diverged", text, detail, key=f"value/{name}")


def sentence(part: str, off: Mismatch) -> str:
    return (
        f"{off.mismatched} of {off.total} {part} differ, the worst at {list(off.index)}: "
        f"{off.actual:.7g}, expected {off.expected:.7g}, allowed {off.allowed:.2g}"
    )


def margin(vectors: Vectors, step: int, token: int, way: str) -> tuple[float, bool]:
    """Return how far the logit of `token` lies below the largest logit before that step. The flag
    is False if this distance is only a lower bound."""
    row = step - len(vectors.document["greedy"])  # counted from the last row
    ids, top = (vectors.tensors[f"{LOGITS}/{way}.{part}"][row] for part in ("ids", "top"))
    at = np.flatnonzero(ids == token)
    return float(top[0]) - float(top[at[0] if at.size else -1]), bool(at.size)


def same_ids(vectors: Vectors, got: Sequence[int], verdict: Verdicts) -> Verdict:
    want = vectors.document["greedy"]
    if len(got) != len(want):
        text = f"{len(got)} greedy ids, expected {len(want)}"
        return verdict("diverged", text, key="greedy/count")
    pairs = zip(want, got, strict=True)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        return verdict("agreed", f"{len(want)} greedy ids are the same")
    (row,) = (row for row in vectors.document["shown"] if row["name"] == LOGITS)
    allowed = 2 * row["allowed"]["values"]
    below, known = min(margin(vectors, first, got[first], way) for way in WAYS)
    text = f"greedy id {first} is {got[first]}, expected {want[first]}; its logit is "
    text += f"{'' if known else 'at least '}{below:.2g} below the largest, a tie is {allowed:.2g}"
    detail = {"step": first, "expected": want[first], "actual": got[first], "margin": below}
    if below > allowed:
        return verdict("diverged", text, detail, key="greedy/token")
    if not known:
        return verdict("not-compared", f"{text}: more ids may tie than are stored", detail)
    return verdict("excused", f"{text}: the ids after it were not compared", detail)
