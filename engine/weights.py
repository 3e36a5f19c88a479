"""Tensors of a model as arrays, decoded on demand from the mapped file, never all at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32, WeightFormat

CHUNK = 1 << 18  # weights decoded at a time: 2 MB as float64, which fits into the cache


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor as it lies in the file: `shape` is (..., rows, columns), slowest first."""

    name: str
    format: type[WeightFormat]
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.format.weights * self.format.layout.itemsize

    def rows(self, start: int, stop: int) -> F32:
        """Return rows `start` to `stop` of a matrix, decoded: (rows, columns)."""
        raw = self.raw[start * self.row_bytes : stop * self.row_bytes]
        return self.format.dequantize(raw).reshape(-1, self.shape[-1])

    def take(self, ids: NDArray[Any]) -> F32:
        """Return the rows with these ids, decoded: (ids, columns)."""
        by_row = self.raw.reshape(-1, self.row_bytes)
        return self.format.dequantize(by_row[ids].reshape(-1)).reshape(len(ids), self.shape[-1])

    def between(self, rows: slice) -> "Weight":
        """Return a weight that consists of these rows of the matrix."""
        raw = self.raw.reshape(-1)[rows.start * self.row_bytes : rows.stop * self.row_bytes]
        return Weight(self.name, self.format, (rows.stop - rows.start, self.shape[-1]), raw)

    def runs(self, size: int | None = None) -> Iterator[slice]:
        """Yield ranges of rows that are small enough to decode at once; size: the maximum number of
        weights in a range.
        """
        step = max(1, (CHUNK if size is None else size) // self.shape[-1])
        for start in range(0, self.shape[0], step):
            yield slice(start, min(start + step, self.shape[0]))

    def chunks(self) -> Iterator[tuple[slice, F32]]:
        """Yield the ranges of `runs`, each with its decoded rows."""
        for rows in self.runs():
            yield rows, self.rows(rows.start, rows.stop)

    def values(self) -> F32:
        """Return the whole tensor decoded, for vectors (which every step needs) and small
        matrices."""
        if len(self.shape) == 1:
            return self.vector.copy()
        return self.format.dequantize(self.raw).reshape(self.shape)

    @cached_property
    def vector(self) -> F32:
        return self.format.dequantize(self.raw)

    def part(self, index: int) -> "Weight":
        """Return one matrix of a stack, such as an expert."""
        size = self.raw.size // self.shape[0]
        raw = self.raw[index * size : (index + 1) * size]
        return Weight(f"{self.name}[{index}]", self.format, self.shape[1:], raw)


class Weights:
    """Tensors of one file by name. A graph passes the shape that it expects."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.formats: dict[str, type[WeightFormat]] = {}
        self.found: dict[str, Weight] = {}
        for name, info in file.tensors.items():
            try:
                self.formats[name] = WeightFormat.member(info.type.name)
            except Exception as error:
                raise type(error)(f"tensor {name!r}: {error}") from None

    def __contains__(self, name: str) -> bool:
        return name in self.formats  # a fast test, because graphs ask at every step

    def tensor(self, name: str, shape: tuple[int, ...]) -> Weight:
        """Return the tensor, cached by name. Raises InvalidModel if the tensor is missing or has
        another shape.
        """
        found = self.found.get(name)
        if found is None or found.shape != shape or found.format is not self.formats[name]:
            found = self.found[name] = self.look_up(name, shape)
        return found

    def look_up(self, name: str, shape: tuple[int, ...]) -> Weight:
        info = self.file.tensors.get(name)
        if info is None:
            raise InvalidModel(f"tensor {name!r} is missing; the model needs it with shape {shape}")
        if info.shape != shape:
            raise InvalidModel(f"tensor {name!r} has shape {info.shape}; expected {shape}")
        return Weight(name, self.formats[name], shape, self.file.raw(name))

    def vector(self, name: str, size: int) -> F32:
        return self.tensor(name, (size,)).values()
