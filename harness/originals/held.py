"""A tensor of the GGUF file, and the places where it differs from the expected tensor."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32, Bytes, WeightFormat
from lockstep.harness.originals.recipes import ExpectedTensor
from lockstep.harness.originals.rounding import FEWEST, JudgedRows, judge_rows, wrong_factor

SAMPLED = 8  # number of wrong rows on which causes are tested, and of right rows
FEW_BLOCKS = 32  # number of blocks; in a smaller matrix, one unusual block proves nothing


@dataclass(frozen=True, eq=False)
class TensorInFile:
    """A tensor as stored in the GGUF file."""

    kind: type[WeightFormat]
    shape: tuple[int, ...]
    raw: Bytes
    weighed: bool = False  # True: the quantiser may have weighted errors by importance

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.kind.weights * self.kind.layout.itemsize

    def raw_rows(self, index: NDArray[np.int64]) -> Bytes:
        """Return the bytes of these rows: (rows, bytes)."""
        return self.raw.reshape(-1, self.row_bytes)[index]

    def values(self, index: NDArray[np.int64]) -> F32:
        """Return these rows, decoded."""
        found = self.kind.dequantize(self.raw_rows(index).reshape(-1))
        return found.reshape(len(index), -1)

    def has_rows_after(self, start: int) -> bool:
        """Return True if any row from `start` on holds a value other than zero."""
        n = self.raw.size // self.row_bytes
        step = max(1, (1 << 20) // self.row_bytes)
        runs = (np.arange(at, min(at + step, n)) for at in range(start, n, step))
        return any(bool(self.values(index).any()) for index in runs)


@dataclass(kw_only=True)
class WrongPlaces:
    """The elements that differ from the expected elements. `rows` holds the numbers of the first
    wrong rows."""

    n_rows: int
    n_wrong: int = 0  # number of wrong rows
    n_elements: int = 0
    n_blocks: int = 0  # number of unusual blocks without a wrong element
    rows: list[int]
    factor: float | None = None  # factor of all weights, if nothing else is wrong
    column: int = 0  # the first wrong column of the first wrong row
    expected: float = 0.0
    got: float = 0.0

    def detail(self) -> dict[str, Any]:
        """Return the places as plain JSON values."""
        found = {"row": self.rows[0], "column": self.column, "rows": self.n_wrong}
        return found | {"of_rows": self.n_rows, "elements": self.n_elements}


def judge(expected: ExpectedTensor, held: TensorInFile, index: NDArray[np.int64]) -> JudgedRows:
    """Return the judgement of these rows: the elements that differ from the expected elements."""
    want = np.ascontiguousarray(expected.rows(index))
    raw = held.raw_rows(index).reshape(-1)
    return judge_rows(held.kind, want, raw, weighed=held.weighed)


def fits(expected: ExpectedTensor, held: TensorInFile, index: NDArray[np.int64]) -> bool:
    """Return True if these rows are as expected."""
    return not judge(expected, held, index).wrong.any()


def wrong_places(expected: ExpectedTensor, held: TensorInFile, n_rows: int) -> WrongPlaces | None:
    """Return the places where the file's tensor differs; None if it does not differ. `n_rows` is
    the number of compared rows."""
    found = WrongPlaces(n_rows=n_rows, rows=[])
    odd, odd_rows, n_blocks = 0, [], 0
    sums = np.zeros(3)
    for run in expected.runs(n_rows):
        index = np.arange(run.start, run.stop)
        judged = judge(expected, held, index)
        rows = judged.wrong.any(axis=1)
        if rows.any():
            note_rows(found, expected, held, index[rows], judged.wrong[rows])
        sums += judged.sums if judged.sums is not None else 0
        if judged.unusual is not None:
            odd += int(judged.unusual.sum())
            n_blocks += judged.unusual.size
            odd_rows += index[judged.unusual.any(axis=1)][:SAMPLED].tolist()
    if found.rows:
        return found
    if 0 < odd <= max(1, FEWEST * n_blocks) and n_blocks >= FEW_BLOCKS:
        found.n_blocks, found.rows, found.n_wrong = odd, odd_rows[:SAMPLED], len(odd_rows)
        return found
    found.factor = wrong_factor(sums, max(1, n_rows * expected.shape[-1]))
    if found.factor is not None:
        found.rows, found.n_wrong = [0], n_rows
        return found
    return None


def note_rows(
    found: WrongPlaces,
    expected: ExpectedTensor,
    held: TensorInFile,
    rows: NDArray[np.int64],
    wrong: NDArray[np.bool_],
) -> None:
    if not found.rows:
        found.column = int(wrong[0].argmax())
        found.expected = float(expected.rows(rows[:1])[0, found.column])
        found.got = float(held.values(rows[:1])[0, found.column])
    found.n_wrong += len(rows)
    found.n_elements += int(wrong.sum())
    found.rows += rows[: SAMPLED - len(found.rows)].tolist()
