"""Causes of wrong values in a tensor: known mistakes of converters, each tested on a few rows.

A cause must explain the wrong rows and also the right rows. A cause is never chosen by how much of
the error it explains.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.harness.originals.findings import DifferenceKind
from lockstep.harness.originals.held import SAMPLED, TensorInFile, WrongPlaces, fits
from lockstep.harness.originals.recipes import ExpectedTensor
from lockstep.harness.originals.rounding import CUTS, round_to, same_bits

Cause = tuple[DifferenceKind, dict[str, Any]]
MAX_RESHAPED = 1 << 24  # elements of a matrix that is copied in transposed order to test this cause
FEW_ROWS = 0.1  # share of a matrix; fewer wrong rows count as kind `rows`


def find_cause(
    expected: ExpectedTensor,
    others: Mapping[str, ExpectedTensor],
    heads: tuple[int, int],
    held: TensorInFile,
    found: WrongPlaces,
) -> Cause:
    """Return the mistake that reproduces the file's rows. `others` holds every expected tensor of
    the file. `heads` holds the number of query heads and the number of key heads."""
    if found.n_blocks:
        return DifferenceKind.blocks, {"blocks": found.n_blocks}
    if found.factor is not None:
        return DifferenceKind.scaled, {"factor": found.factor}
    index = sample(found)
    got = held.values(index)
    if not got.any():
        return DifferenceKind.zeros, {}
    if rounded := wrong_rounding(expected.rows(index), got, held.kind.name):
        return rounded
    for kind, detail, other in mistakes(expected, heads):
        if fits(other, held, index):
            return kind, detail
    if moved := moved_experts(expected, held):
        return DifferenceKind.experts, moved
    if found.n_wrong <= max(1, FEW_ROWS * found.n_rows) and found.n_rows > 1:
        return DifferenceKind.rows, {}
    holder = find_holder(expected, others, held, index)
    return (DifferenceKind.holds, {"holds": holder}) if holder else (DifferenceKind.value, {})


def find_holder(
    expected: ExpectedTensor,
    others: Mapping[str, ExpectedTensor],
    held: TensorInFile,
    index: NDArray[np.int64],
) -> str | None:
    """Return the name of another tensor that has these rows, preferably a tensor of the same layer;
    None if no tensor has them."""
    for other in sorted(others.values(), key=lambda each: each.layer != expected.layer):
        same = other.name != expected.name and other.shape == expected.shape
        if same and fits(other, held, index):
            return other.name
    return None


def wrong_rounding(want: F32, got: F32, kind: str) -> Cause | None:
    """Return the wrong way in which F32, F16 or BF16 numbers were rounded; None if no single way
    explains all numbers."""
    if kind in CUTS and same_bits(CUTS[kind](want), got).all():
        return DifferenceKind.truncated, {}
    for way in CUTS:
        if same_bits(round_to(kind, round_to(way, want)), got).all():
            return DifferenceKind.narrowed, {"by_way_of": way}
    return None


def sample(found: WrongPlaces) -> NDArray[np.int64]:
    """Return the first wrong rows, and further rows spread over the matrix."""
    spread = np.linspace(0, found.n_rows - 1, min(SAMPLED, found.n_rows)).astype(np.int64)
    return np.unique(np.concatenate([np.array(found.rows, np.int64), spread]))


Mistake = tuple[DifferenceKind, dict[str, Any], ExpectedTensor]


def mistakes(expected: ExpectedTensor, heads: tuple[int, int]) -> Iterator[Mistake]:
    """Yield the tensor as each known mistake would produce it."""
    if ".attn_q." in expected.name or ".attn_k." in expected.name:
        yield from wrong_orders(expected, heads)
    if "norm" in expected.name and expected.name.endswith(".weight"):
        for added in {0.0, 1.0, 2.0, -1.0} - {expected.added}:
            detail = {"added": added, "expected_added": expected.added}
            yield DifferenceKind.offset, detail, replace(expected, added=added)
    if len(expected.shape) > 1:
        yield from wrong_matrices(expected)
    if expected.half is not None:
        yield DifferenceKind.halves, {}, replace(expected, half=1 - expected.half)


def wrong_orders(expected: ExpectedTensor, heads: tuple[int, int]) -> Iterator[Mistake]:
    """Yield queries or keys whose rows are reordered for another number of heads, or not
    reordered."""
    for turns in (0, 1, 2):
        for each in dict.fromkeys((expected.heads, *heads)):
            other = (turns, each) != (expected.turns, expected.heads)
            if other and each and not expected.shape[0] % (2 * each):
                detail = {"turns": turns, "heads": each}
                detail |= {"expected_heads": expected.heads if expected.turns else 0}
                yield DifferenceKind.order, detail, replace(expected, turns=turns, heads=each)


def wrong_matrices(expected: ExpectedTensor) -> Iterator[Mistake]:
    """Yield matrices that are transposed or rolled."""
    n, columns = expected.shape[-2:]
    if n == columns or may_be_reshaped(expected):
        yield DifferenceKind.transposed, {}, transpose(expected)
    for rolled in (1, -1):
        yield DifferenceKind.shifted, {"by": rolled}, replace(expected, rolled=rolled)
    if n % 2 == 0:
        yield DifferenceKind.halves, {}, replace(expected, rolled=n // 2)


def may_be_reshaped(expected: ExpectedTensor) -> bool:
    """Return True if the matrix is small enough to be transposed in memory."""
    plain = not expected.transposed and expected.half is None
    return plain and expected.shape[-2] * expected.shape[-1] <= MAX_RESHAPED


def transpose(expected: ExpectedTensor) -> ExpectedTensor:
    """Return the tensor with each matrix transposed but with the same shape."""
    if expected.shape[-1] == expected.shape[-2]:
        return replace(expected, transposed=not expected.transposed)
    return replace(expected, reshaped=True)


def moved_experts(expected: ExpectedTensor, held: TensorInFile) -> dict[str, Any]:
    """Return details on the first expert with a wrong matrix: either the other expert to which this
    matrix belongs, or that the matrix is transposed. Return {} if neither explains the rows."""
    if len(expected.shape) < 3:
        return {}
    n, size = expected.shape[0], expected.shape[1]
    rows = np.unique(np.linspace(0, size - 1, min(4, size)).astype(np.int64))
    wrong = [e for e in range(n) if not fits(expected, held, e * size + rows)]
    for expert in wrong[:1]:
        for other in range(n):
            order = tuple(other if each == expert else each for each in range(n))
            if other != expert and fits(
                replace(expected, experts=order), held, expert * size + rows
            ):
                return {"expert": expert, "holds_expert": other, "wrong_experts": len(wrong)}
        may_turn = size == expected.shape[2] or may_be_reshaped(expected)
        if may_turn and fits(transpose(expected), held, expert * size + rows):
            return {"expert": expert, "transposed": True, "wrong_experts": len(wrong)}
    return {}
