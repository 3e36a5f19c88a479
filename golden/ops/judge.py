"""Judgement of an answer with only the vector, as an engine's author would do it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import PLAIN
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.records import Mismatch

Array = NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class JudgedCase:
    """Result for one output of a case. way: the accepted way that is nearest to the output; "" if
    the output has a wrong shape or type."""

    case: str
    output: str
    way: str = ""
    share: float = 0.0  # largest error as a share of its limit
    wrong: Mismatch | None = None
    reason: str = ""


def judge(row: Mapping[str, Any], tensors: Tensors, answers: Tensors) -> Iterator[JudgedCase]:
    """Judge an engine's answers to a case. row: the case in the document; answers: all outputs by
    name."""
    for name, output in row["outputs"].items():
        got = answers[name]
        wrong = unlike(output, got)
        if wrong is not None:
            yield JudgedCase(case=row["id"], output=name, wrong=wrong)
            continue
        found = [against(row, name, way, tensors, answers, got) for way in sorted(output["ways"])]
        yield min(found, key=lambda one: (one.wrong is not None, wrongs(one), one.share))


def wrongs(one: JudgedCase) -> int:
    return 0 if one.wrong is None else one.wrong.mismatched


def unlike(output: Mapping[str, Any], got: Array) -> Mismatch | None:
    want = np.dtype(PLAIN[output["type"]])
    if got.dtype != want:
        return Mismatch(kind="shape", detail=f"expected {want}, got {got.dtype}")
    if list(got.shape) != output["shape"]:
        text = f"expected shape {tuple(output['shape'])}, got {got.shape}"
        return Mismatch(kind="shape", detail=text)
    return None


def against(
    row: Mapping[str, Any], name: str, way: str, tensors: Tensors, answers: Tensors, got: Array
) -> JudgedCase:
    """Compare one output with one of its accepted ways."""
    output = row["outputs"][name]
    said = output["ways"][way]
    value = tensors[f"{row['id']}/{name}.{way}"]
    allowed = said["allowed"]
    if allowed is None:
        allowed = tensors[f"{row['id']}/{name}.{way}.allowed"].astype(np.float64)
    rule, of = output["judged"], output["of"]
    if rule in ("ties", "choice"):
        value, got = in_place_of_ids(rule, tensors[f"{row['id']}/{of}"], value, got)
    elif rule == "rows":
        value, got = (in_any_order(ids, answers[of]) for ids in (value, got))
    with np.errstate(over="ignore"):
        value = value.astype(got.dtype)
    wrong = mismatch_between(value, got, allowed)
    share = closeness(value, got, allowed)
    return JudgedCase(
        case=row["id"], output=name, way=way, share=share, wrong=wrong, reason=said["reason"]
    )


def in_place_of_ids(rule: str, source: Array, want: Array, got: Array) -> tuple[Array, Array]:
    """Replace ids by the values at these ids, because any of several equal values may be chosen.

    Flags after the values say whether the ids are distinct and within the row.
    """
    sides = []
    for ids in (want, got):
        inside = (ids >= 0) & (ids < source.shape[-1])
        taken = np.take_along_axis(source, np.where(inside, ids, 0).astype(np.int64), axis=-1)
        if rule == "choice":
            taken = np.sort(taken, axis=-1)
        ordered = np.sort(ids, axis=-1)
        apart = np.diff(ordered, axis=-1, prepend=-1) > 0
        sides.append(np.concatenate([taken, apart & np.sort(inside, axis=-1)], axis=-1))
    return sides[0], sides[1]


def in_any_order(ids: Array, counts: Array) -> Array:
    """Sort the first `counts` ids of each row, and set later ids to zero, because they are free."""
    out = np.zeros_like(ids)
    for row, n in enumerate(np.clip(counts, 0, ids.shape[-1])):
        out[row, :n] = np.sort(ids[row, :n])
    return out


def closeness(value: Array, got: Array, allowed: Array | float) -> float:
    if not value.size:
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(got.astype(np.float64) - value.astype(np.float64))
        share = np.where(np.isfinite(error) & (error > 0), error / np.asarray(allowed), 0.0)
    return float(share.max())
