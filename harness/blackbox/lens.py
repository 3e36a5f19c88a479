"""One lens: which weights its rows are, which tokens are asked, what the head meets of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat

LARGEST_STEP = 127.0 * 2.0**-6  # what an activation is behind the last norm, or its negative
SIZE = 2.0**10  # of embeddings: eps beside their squares is less than a rounding
BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rows of a lens that are weights of one tensor."""

    tensor: str
    start: int  # row of the lens
    rows: int
    first: int  # number of the first weight in the tensor


@dataclass(frozen=True, kw_only=True)
class Lens:
    type: str
    width: int
    vocabulary: int
    period: int  # inputs from one that is not zero to the next: so many tokens are asked
    stretches: tuple[Stretch, ...]
    layers: int = 1  # of the model, that add nothing
    decoded: bool = False  # its head is F32
    scale: float = 1.0  # of logits, behind the head
    cap: float = 0.0  # of these; 0: none
    # of a head that is the table of embeddings (tied_lenses.py): the tokens that are asked, from
    # which of these on
    ids: tuple[int, ...] = ()
    first: int = 0

    @property
    def hot(self) -> int:
        return self.width // self.period

    @property
    def shown_of_a_row(self) -> int:
        """Weights, by all tokens that are asked."""
        return self.hot * (len(self.ids) or self.period)

    @property
    def batches(self) -> Iterator[tuple[Batch, NDArray[np.float64]]]:
        """Tokens and what the head meets of them, (tokens, width), a few at a time."""
        ids = self.ids or range(self.period)
        for start in range(0, len(ids), BLOCK):
            some = ids[start : start + BLOCK]
            numbers = range(self.first + start, self.first + start + len(some))
            yield Batch.of(list(some)), self.inputs(numbers) * LARGEST_STEP

    def inputs(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Those of the tokens, less than `period`, that show other weights each."""
        found = np.zeros((len(numbers), self.width))
        for row, number in zip(found, numbers, strict=True):
            row[number :: self.period] = self.signs(number)
        return found

    def signs(self, number: int) -> NDArray[np.float64]:
        half = -(-self.hot // 2)
        bits = Philox(key=number).random_raw(half) >> np.uint64(63)
        signs = np.where(bits, 1.0, -1.0)
        return np.concatenate([signs, -signs])[: self.hot]

    def where(self, row: int, column: int) -> tuple[str, int]:
        """The tensor, and the number of the weight in it."""
        for s in self.stretches:
            if s.start <= row < s.start + s.rows:
                return s.tensor, s.first + (row - s.start) * self.width + column
        return "", 0  # a row of zeros


def row_bytes(lens: Lens) -> int:
    format = WeightFormat.member(lens.type)
    return lens.width // format.weights * format.layout.itemsize


def bytes_of(file: GgufFile, lens: Lens, stretch: Stretch) -> NDArray[np.uint8]:
    info, size = file.tensors[stretch.tensor], row_bytes(lens)
    start = stretch.first // info.type.block * info.type.bytes
    return file.raw(info.name)[start : start + stretch.rows * size]
