"""gguf-py, llama.cpp's Python package, as a reader of files and a decoder of weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.gguf_py.parse import parse
from lockstep.harness.adapters.parts import file_summary as summary
from lockstep.harness.adapters.parts.parsing import files_of
from lockstep.harness.adapters.parts.timing import pieces_of, seconds_each
from lockstep.harness.records import EngineInfo, FileSummary, TensorSummary

# errors with which gguf-py refuses a file; the first wrong step decides which
REFUSALS = (ValueError, KeyError, IndexError, OverflowError, OSError)


class GgufPy(Adapter, name="gguf-py"):
    isolated = True

    def describe(self) -> EngineInfo:
        from importlib.metadata import version

        return EngineInfo(engine=self.name, version=version("gguf"), settings=self.settings)

    def metadata(self) -> FileSummary:
        if self.model is None:
            raise EngineError("the question needs a model file, and none was given")
        try:
            return read(self.model)
        except REFUSALS as error:
            raise EngineError(
                f"gguf-py does not read {self.model.name}: {type(error).__name__}: {error}"
            ) from error

    def parse(
        self, blob: NDArray[np.uint8], ends: NDArray[np.int64], way: str
    ) -> dict[str, NDArray[Any] | dict[int, str]]:
        return parse(list(files_of(blob, ends)), way)

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        kind, (block, _) = known_type(type_name)
        if raw.size % block:
            raise EngineError(
                f"{raw.size} bytes are not a multiple of a {type_name} block ({block} bytes)"
            )
        return np.array(decode_value(kind, raw), np.float32).reshape(-1)

    def time_dequantize(
        self, type_name: str, raw: NDArray[np.uint8], seconds: float, threads: int
    ) -> float:
        """Return the seconds of the decoder. The decoder makes a new array each time, as in normal
        use."""
        kind, sizes = known_type(type_name)
        if type_name == "F32":
            raise Unsupported("gguf-py does not decode F32, so there is nothing to time")
        pieces = pieces_of(raw, sizes, threads)
        return seconds_each(lambda piece: decode_value(kind, piece[0]), pieces, seconds)


def known_type(name: str) -> tuple[Any, tuple[int, int]]:
    """Return gguf-py's type for a name, and the bytes and weights of a block."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if name not in GGMLQuantizationType.__members__:
        raise Unsupported(f"gguf-py knows no weight type {name!r}")
    kind = GGMLQuantizationType[name]
    weights, size = GGML_QUANT_SIZES[kind]
    return kind, (size, weights)


def decode_value(kind: Any, raw: NDArray[np.uint8]) -> Any:
    from gguf import quants

    try:
        with np.errstate(all="ignore"):  # infinite scales are legal
            return quants.dequantize(np.ascontiguousarray(raw, np.uint8).reshape(-1), kind)
    except NotImplementedError as error:
        raise Unsupported(f"gguf-py: {error}") from error


def read(path: Path) -> FileSummary:
    reader = reader_of(path)
    return FileSummary(
        version=int(reader.fields["GGUF.version"].parts[0][0]),
        alignment=int(reader.alignment),
        data_offset=int(reader.data_offset),
        metadata={
            name: value_of(field)
            for name, field in reader.fields.items()
            # gguf-py adds the counts of the header under such names
            if not name.startswith("GGUF.")
        },
        tensors=tuple(
            TensorSummary(
                name=str(tensor.name),
                ne=summary.shape(tensor.shape),
                type=tensor.tensor_type.name,
                offset=int(tensor.data_offset) - int(reader.data_offset),
                n_bytes=int(tensor.n_bytes),
            )
            for tensor in reader.tensors
        ),
    )


def reader_of(path: Path) -> Any:
    """Return GGUFReader on a mapped file, with plain arrays instead of memmaps. Slicing a memmap
    runs Python code, which takes two thirds of the time for a large vocabulary."""
    from gguf import GGUFReader

    class Reader(GGUFReader):  # type: ignore[misc]
        @property
        def data(self) -> NDArray[np.uint8]:
            return self.plain

        @data.setter
        def data(self, mapped: NDArray[np.uint8]) -> None:
            self.plain = np.asarray(mapped)

    return Reader(path)


def value_of(field: Any) -> tuple[str, Any]:
    kinds = [summary.VALUE_TYPES[int(kind)] for kind in field.types]
    if kinds[0] != "ARR":
        return kinds[0], items_of(field, kinds[0])[0]
    item = summary.VALUE_TYPES[int(field.parts[3][0])]  # an empty array has this type too
    if item == "ARR":
        raise Unsupported("gguf-py flattens an array of arrays, so its shape is lost")
    return summary.array_type(item), items_of(field, item)


def items_of(field: Any, kind: str) -> Sequence[summary.Scalar]:
    if kind == "STR":
        return [summary.text(bytes(field.parts[i])) for i in field.data]
    return [summary.scalar(kind, field.parts[i][0]) for i in field.data]
