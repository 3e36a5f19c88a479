"""A compact form of a large matrix, which any engine can compute from its own matrix.

For each row, the form has the largest values, the values of some seeded columns, and two sums over
every block of columns. So every value affects the form. The plain sum finds a block that is wrong
as a whole, or one value that is far off. The moment multiplies each value by its place in the
block, so it also finds values that have changed places.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.golden.store import Tensors
from lockstep.harness.judging.compare import mismatch_between, worst_distance
from lockstep.harness.records import Mismatch
from lockstep.harness.synth.draws import integers, stream

TOP = 32  # number of largest values in a row, enough for the ids that tie for the next token
COLUMNS = 256
BLOCK = 256  # columns that are summed together
SUMS = ("sums", "moments")
RULE = (
    f"sums: of each {BLOCK} columns, in float64, from zero, one after the other; moments: the same "
    f"of value times place in its block, 1 to {BLOCK}, a product that float64 holds exactly"
)


def seeded_columns(seed: int, name: str, width: int) -> NDArray[np.int32]:
    """Return ascending columns: one from each of COLUMNS equal ranges, or all columns of a narrow
    matrix."""
    n = min(COLUMNS, width)
    edges = np.arange(n + 1, dtype=np.int64) * width // n
    drawn = integers(stream(seed, f"golden.columns {name}"), n, 1 << 31) % np.diff(edges)
    return (edges[:-1] + drawn).astype(np.int32)


def compact_logits(matrix: F32, columns: NDArray[np.int32]) -> Tensors:
    """Return the tensors that a golden stores for one way to compute; of equal values, the smaller
    id comes first."""
    ids = np.argsort(-matrix, axis=1, kind="stable")[:, :TOP].astype(np.int32)
    sums, moments = block_sums(matrix)
    return {
        "ids": ids,
        "top": np.take_along_axis(matrix, ids, axis=1),
        "columns": matrix[:, columns],
        "sums": sums,
        "moments": moments,
    }


def block_sums(matrix: F32) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums and moments of blocks, (rows, blocks) each, as defined in RULE; the last
    block may be shorter."""
    rows, width = matrix.shape
    blocks = -(-width // BLOCK)
    wide = np.zeros((rows, blocks * BLOCK))
    wide[:, :width] = matrix
    wide = wide.reshape(rows, blocks, BLOCK)
    sums, moments = np.zeros((rows, blocks)), np.zeros((rows, blocks))
    with np.errstate(invalid="ignore"):  # sums of infinities may be NaN
        for place in range(BLOCK):
            sums += wide[:, :, place]
            moments += (place + 1) * wide[:, :, place]
    return sums, moments


@dataclass(kw_only=True)
class Floor:
    """Largest distances of honest runs from the run without errors."""

    value: float = 0.0
    sums: float = 0.0
    moments: float = 0.0

    def widen(self, honest: F32, moved: F32) -> None:
        self.value = max(self.value, worst_distance(honest, moved))
        pairs = zip(block_sums(honest), block_sums(moved), strict=True)
        sums, moments = (worst_distance(a, b) for a, b in pairs)
        self.sums, self.moments = max(self.sums, sums), max(self.moments, moments)


@dataclass(frozen=True, kw_only=True)
class HeldMatrix:
    """A stored matrix of a golden, with the limits for another engine's matrix."""

    tensors: Tensors  # result of `compact_logits`
    columns: NDArray[np.int32]
    allowed: Mapping[str, float]  # limits of values, sums and moments

    def parts(self, got: F32) -> Iterator[tuple[str, NDArray[Any], NDArray[Any], float]]:
        """Yield each part of the form: its name, the stored values, the values of `got`, and the
        limit."""
        sums, moments = block_sums(got)
        top = np.take_along_axis(got, self.tensors["ids"].astype(np.int64), axis=1)
        values = self.allowed["values"]
        yield "top", self.tensors["top"], top, values
        yield "columns", self.tensors["columns"], got[:, self.columns], values
        yield "sums", self.tensors["sums"], sums, self.allowed["sums"]
        yield "moments", self.tensors["moments"], moments, self.allowed["moments"]

    def differences(self, got: F32) -> Iterator[tuple[str, Mismatch]]:
        """Yield each part beyond its limit, with its worst element."""
        for name, held, mine, allowed in self.parts(got):
            off = mismatch_between(held, mine, allowed)
            if off is not None:
                yield name, off
        off = self.above(got)
        if off is not None:
            yield "rest", off

    def above(self, got: F32) -> Mismatch | None:
        """Return a value outside a row's stored top that exceeds the smallest stored value, or
        None."""
        rest, allowed = got.astype(np.float64), self.allowed["values"]
        np.put_along_axis(rest, self.tensors["ids"].astype(np.int64), -np.inf, axis=1)
        least = self.tensors["top"][:, -1].astype(np.float64)
        with np.errstate(invalid="ignore"):  # minus infinity minus minus infinity is NaN
            excess = np.nan_to_num(np.fmax.reduce(rest, axis=1) - least, nan=-np.inf)
        bad = excess > allowed
        if not bad.any():
            return None
        row = int(excess.argmax())
        at = int(np.nanargmax(rest[row]))
        return Mismatch(
            kind="value",
            index=(row, at),
            expected=float(least[row]),
            actual=float(rest[row, at]),
            allowed=allowed,
            mismatched=int(bad.sum()),
            total=len(got),
        )

    def share(self, got: F32) -> float:
        """Return the error of the worst part as a share of its limit."""
        used = [(worst_distance(a, b), allowed) for _, a, b, allowed in self.parts(got)]
        return max(far / most if most else (float("inf") if far else 0.0) for far, most in used)
