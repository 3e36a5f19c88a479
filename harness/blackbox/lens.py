"""One lens: the weights in its rows, the tokens of its prompt, and the inputs of its output
matrix."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.suites.parts.small_scales import with_small_scales

LARGEST_STEP = 127.0 * 2.0**-6  # magnitude of an activation after the last norm
SIZE = 2.0**10  # size of embeddings: eps is below the rounding error of their squares
BLOCK = 32
UNEVEN = 8  # number of tokens
# number of columns in each half of a row; with more columns, the rounding errors of the sum would
# hide how each product is rounded
UNEVEN_COLUMNS = 64
EIGHTHS = np.array([1, 2, 3, 5, 6, 7]) / 8  # fractions of a step


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A range of a lens's rows that contain weights of one tensor."""

    tensor: str
    start: int  # first row of the lens
    rows: int
    first: int  # number of the tensor's first weight
    small: bool = False  # the blocks of the tensor get subnormal F16 scales

    @property
    def words(self) -> str:
        return f"{self.tensor} with subnormal scales" if self.small else self.tensor


@dataclass(frozen=True, kw_only=True)
class Lens:
    type: str
    width: int
    vocabulary: int
    period: int  # distance between two nonzero inputs, which is also the number of tokens
    stretches: tuple[Stretch, ...]
    layers: int = 1  # number of the model's layers, which add nothing
    decoded: bool = False  # True: the head is F32
    scale: float = 1.0  # scale of logits, after the head
    cap: float = 0.0  # cap of logits; 0: none
    # for a head that is the embedding table (tied_lenses.py): the tokens of the prompt, and the
    # number of the first token that is read
    ids: tuple[int, ...] = ()
    first: int = 0

    @property
    def holds_small(self) -> bool:
        return any(stretch.small for stretch in self.stretches)

    @property
    def hot(self) -> int:
        return self.width // self.period

    @property
    def shown_of_a_row(self) -> int:
        """Return how many weights of a row all tokens together show."""
        return self.hot * (len(self.ids) or self.period)

    @property
    def batches(self) -> Iterator[tuple[Batch, NDArray[np.float64]]]:
        """Yield batches of tokens, each with the head's inputs, (tokens, width)."""
        ids = self.ids or range(self.period)
        for start in range(0, len(ids), BLOCK):
            some = ids[start : start + BLOCK]
            numbers = range(self.first + start, self.first + start + len(some))
            yield Batch.of(list(some)), self.inputs(numbers) * LARGEST_STEP

    @property
    def uneven(self) -> range:
        """Return the tokens whose inputs conversions round; none for a tied output matrix or a
        small vocabulary."""
        last = self.period + UNEVEN
        return range(self.period, last if last <= self.vocabulary and not self.ids else self.period)

    def embeddings(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the embeddings of the lens's tokens from `start` to `stop`, (rows, width). The
        norm turns them into the head's inputs."""
        even = range(start, min(stop, self.period))
        uneven = [self.uneven_row(i) for i in self.uneven if start <= i < stop]
        return np.concatenate([self.inputs(even), np.reshape(uneven, (-1, self.width))])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return for each column the exponent of the power of two that scales the uneven inputs of
        its block."""
        half = self.width // 2
        return np.resize(np.arange(half) // BLOCK % 3, self.width)

    def uneven_row(self, number: int) -> NDArray[np.float64]:
        """Return the input row of one uneven token. In blocks of any size, the largest inputs are
        127 steps. The other inputs lie between two steps, at multiples of an eighth. The second
        half of the row repeats the first half with the other sign."""
        half = self.width // 2
        raw = Philox(key=number).random_raw(half)
        eighths = EIGHTHS[(raw & np.uint64(7)).astype(np.int64) % len(EIGHTHS)]
        steps = (raw >> np.uint64(40)).astype(np.int64) % 125 + eighths
        steps[number % 8 :: 8] = 127.0
        steps *= np.where(raw >> np.uint64(63), 1.0, -1.0)
        steps *= 2.0 ** self.sizes[:half]
        steps[UNEVEN_COLUMNS:] = 0.0
        return np.concatenate([steps, -steps])[: self.width] / 2.0**7

    def inputs(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Return the inputs of the tokens with these numbers. The numbers are less than `period`,
        and each token shows different weights."""
        found = np.zeros((len(numbers), self.width))
        for row, number in zip(found, numbers, strict=True):
            row[number :: self.period] = self.signs(number)
        return found

    def signs(self, number: int) -> NDArray[np.float64]:
        half = -(-self.hot // 2)
        bits = Philox(key=number).random_raw(half) >> np.uint64(63)
        signs = np.where(bits, 1.0, -1.0)
        return np.concatenate([signs, -signs])[: self.hot]

    def where(self, row: int, column: int) -> tuple[Stretch | None, int]:
        """Return the stretch that contains a row (None for zeros), and the index of the weight in
        its tensor."""
        for s in self.stretches:
            if s.start <= row < s.start + s.rows:
                return s, s.first + (row - s.start) * self.width + column
        return None, 0


def row_bytes(lens: Lens) -> int:
    format = WeightFormat.member(lens.type)
    return lens.width // format.weights * format.layout.itemsize


def bytes_of(file: GgufFile, lens: Lens, stretch: Stretch) -> NDArray[np.uint8]:
    info, size = file.tensors[stretch.tensor], row_bytes(lens)
    start = stretch.first // info.type.block * info.type.bytes
    raw = file.raw(info.name)[start : start + stretch.rows * size]
    small = with_small_scales(lens.type, raw, len(raw)) if stretch.small else None
    return raw if small is None else small
