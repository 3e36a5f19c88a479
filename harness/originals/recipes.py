"""The tensors that a GGUF file should hold, computed from the checkpoint a few rows at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.quants.base import F32
from lockstep.harness.originals.checkpoint import StoredTensor

CHUNK = 1 << 20  # weights that are compared at a time

RECIPES = {
    "copy",
    "vocabulary",  # rows are tokens: padding may be removed or added
    # rows of each head are reordered, so that the two rows of each rotated pair are adjacent
    "q-pairs",
    "k-pairs",
    "plus-one",  # Gemma's norms multiply by 1 + weight, and the file contains this sum
    "transposed",  # Conv1D of GPT-2 has the shape (inputs, outputs)
    "first-half",  # half of the rows, because the checkpoint merges two matrices
    "second-half",
}
OF_QUERIES, OF_KEYS = "q-pairs", "k-pairs"
HALVES = {"first-half": 0, "second-half": 1}


@dataclass(frozen=True, kw_only=True)
class ExpectedTensor:
    """A tensor that the file should hold. `shape` has the slowest axis first."""

    name: str
    originals: tuple[str, ...]  # several names: matrices to stack
    stored: tuple[StoredTensor, ...]
    recipe: str
    shape: tuple[int, ...]
    heads: int = 0  # number of heads whose rows are reordered
    added: float = 0.0
    turns: int = 0  # number of times that rows are reordered
    transposed: bool = False
    half: int | None = None
    in_stored_type: bool = False  # the sum with `added` is rounded to the type of the checkpoint
    rolled: int = 0  # number of rows by which a matrix is shifted
    experts: tuple[int, ...] = ()  # another order of the experts
    may_lack: bool = False  # True: the file need not have the tensor
    # each matrix is written in transposed order, but with the original shape
    reshaped: bool = False

    @property
    def layer(self) -> int | None:
        parts = self.name.split(".")
        return int(parts[1]) if parts[0] == "blk" else None

    @property
    def n_rows(self) -> int:
        """Return the number of rows of all matrices. A vector is one row."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    def runs(self, rows: int | None = None) -> Iterator[slice]:
        """Yield slices that cover the rows. Each slice is small enough for memory."""
        step = max(1, CHUNK // max(1, self.shape[-1]))
        n = self.n_rows if rows is None else rows
        for start in range(0, n, step):
            yield slice(start, min(start + step, n))

    def rows(self, index: NDArray[np.int64]) -> F32:
        """Return the rows with these numbers: (rows, columns). Row numbers continue from one matrix
        to the next."""
        if len(self.shape) == 1:
            return self.finish(self.vector())[None]
        n = self.shape[-2]
        out = np.empty((len(index), self.shape[-1]), np.float32)
        for which in np.unique(index // n):
            own = index // n == which
            out[own] = self.finish(self.matrix(int(which), index[own] % n))
        return out

    def vector(self) -> F32:
        stored = self.stored[0]
        values = stored.values(np.asarray(stored.array))
        return values[self.order(len(values), np.arange(len(values)))]

    def matrix(self, which: int, index: NDArray[np.int64]) -> F32:
        """Return rows of one matrix."""
        which = self.experts[which] if self.experts else which
        stored = self.stored[which if len(self.stored) > 1 else 0]
        array = stored.array
        if array.ndim == 3:
            array = array[which]
        if self.transposed:
            array = array.T
        if self.half is not None:
            size = array.shape[0] // 2
            array = array[self.half * size : (self.half + 1) * size]
        if self.reshaped:
            array = np.ascontiguousarray(array.T).reshape(array.shape)
        index = self.order(array.shape[0], index)
        return stored.values(array[index])

    def order(self, n: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each row of the file, the row of the checkpoint that it comes from. `n` is
        the number of rows.

        A head of the checkpoint has the first elements of all pairs, then the second elements.
        """
        index = (index - self.rolled) % n
        size = n // self.heads if self.heads else n
        for _ in range(self.turns):
            head, at = np.divmod(index, size)
            index = head * size + at % 2 * (size // 2) + at // 2
        return index

    def finish(self, values: F32) -> F32:
        if not self.added:
            return values
        if self.in_stored_type and self.stored[0].kind == "F16":
            return (values.astype(np.float16) + np.float16(self.added)).astype(np.float32)
        return values + np.float32(self.added)


def expect(
    name: str,
    originals: Sequence[str],
    stored: Sequence[StoredTensor],
    recipe: str,
    heads: tuple[int, int],
    *,
    stacked: bool,
) -> ExpectedTensor:
    """Return the tensor that a recipe makes. `heads` holds the number of query heads and the number
    of key heads. If `stacked` is True, each original becomes one matrix of the tensor. Raises
    InvalidModel."""
    shape: tuple[int, ...] = stored[0].shape
    if any(each.shape != shape for each in stored) or not 1 <= len(shape) <= 3:
        shapes = f"{[each.shape for each in stored]}"
        raise InvalidModel(f"{originals[0]}: shapes of {name} are {shapes:.200}")
    changes: dict[str, Any] = {}
    if recipe == "transposed":
        shape, changes["transposed"] = shape[::-1], True
    elif recipe in HALVES:
        shape, changes["half"] = (*shape[:-2], shape[-2] // 2, shape[-1]), HALVES[recipe]
    elif recipe == "plus-one":
        changes["added"] = 1.0
    elif recipe in (OF_QUERIES, OF_KEYS):
        changes |= {"heads": heads[recipe == OF_KEYS], "turns": 1}
        if shape[0] % (2 * changes["heads"]):
            text = f"{shape[0]} rows cannot be split into {changes['heads']} heads of pairs"
            raise InvalidModel(f"{originals[0]}: {text}")
    if stacked:
        shape = (len(stored), *shape)
    return ExpectedTensor(
        name=name,
        originals=tuple(originals),
        stored=tuple(stored),
        recipe=recipe,
        shape=shape,
        **changes,
    )
