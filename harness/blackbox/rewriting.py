"""Rewriting a model from file to file, with other names, other keys and changed values.

Memory use is bounded, because only the header and one chunk of a tensor are in memory at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile, TensorInfo, Value
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.blackbox.changes import Change
from lockstep.harness.synth.gguf_writer import Tensor, Typed, write_gguf
from lockstep.harness.synth.twin import ALL_F32, CHUNK, FILE_TYPE, KEPT, SPLIT

ROW = 1  # number of elements in a row of a scalar


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe that makes one model from another. names: the tensors to write, each with its
    source; changes: the changes of values by new name; rows: the source rows to keep by new name
    (elements, for a vector), for tensors that do not keep all rows; columns: the number of first
    columns to keep of a stored tensor."""

    names: Mapping[str, str]
    # keys that replace those of the source
    keys: Mapping[str, Typed | Value] = field(default_factory=dict)
    without: frozenset[str] = frozenset()  # keys that are removed
    changes: Mapping[str, Change] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()  # tensors that keep the type and bytes of the source
    rows: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)
    more: Sequence[Tensor] = ()  # additional tensors


def rewrite(file: GgufFile, recipe: Recipe, output: Path) -> None:
    """Write the model of the recipe. Raises EngineError or OSError, and then leaves no file."""
    tensors = [*(tensor_of(file, recipe, name) for name in recipe.names), *recipe.more]
    write_gguf(
        output, keys_of(file, recipe), tensors, version=file.version, alignment=file.alignment
    )


def keys_of(file: GgufFile, recipe: Recipe) -> Mapping[str, Typed | Value]:
    left_out = {*SPLIT, *recipe.without}
    # in the order of the file; replaced values are not read, because a vocabulary takes long
    pairs: dict[str, Typed | Value] = {
        key: recipe.keys[key] if key in recipe.keys else file.metadata[key]
        for key in file.metadata
        if key not in left_out
    }
    if FILE_TYPE in pairs and not recipe.stored:
        pairs[FILE_TYPE] = (file.metadata[FILE_TYPE].type, ALL_F32)
    return pairs | dict(recipe.keys)


def tensor_of(file: GgufFile, recipe: Recipe, name: str) -> Tensor:
    info, change = file.tensors[recipe.names[name]], recipe.changes.get(name)
    rows = recipe.rows.get(name)
    ne = info.ne if rows is None else (*info.ne[:-1], len(rows))
    as_it_is = name in recipe.stored or info.type.name in KEPT
    if columns := recipe.columns.get(name):
        return name, (columns, *ne[1:]), info.type.name, first_columns(file, info, columns)
    if change is None and as_it_is:
        return name, ne, info.type.name, raw_chunks(file, info, rows)
    return name, ne, "F32", decoded_chunks(file, info, ne, change, rows)


def raw_of(
    file: GgufFile, info: TensorInfo, rows: NDArray[np.int64] | None
) -> Iterator[NDArray[np.uint8]]:
    """Yield the raw bytes of the rows in one piece, or in one piece for each expert, because
    experts are large. rows: the rows to keep; None for all."""
    raw = file.raw(info.name)
    if rows is None:
        yield raw
    elif len(info.ne) > 2:
        yield from (raw.reshape(info.ne[-1], -1)[i] for i in rows)
    else:
        yield raw.reshape(info.ne[-1], -1)[rows].reshape(-1)


def raw_chunks(file: GgufFile, info: TensorInfo, rows: NDArray[np.int64] | None) -> Iterator[bytes]:
    for raw in raw_of(file, info, rows):
        for start in range(0, len(raw), CHUNK):
            yield raw[start : start + CHUNK].tobytes()
    file.release()


def first_columns(file: GgufFile, info: TensorInfo, columns: int) -> Iterator[bytes]:
    """Yield the bytes of the first columns. Raises Unsupported if a block extends beyond these
    columns."""
    if columns % info.type.block:
        raise Unsupported(f"{info.name}: a block of {info.type.name} belongs to two layers")
    width = info.ne[0] // info.type.block * info.type.bytes
    rows, kept = file.raw(info.name).reshape(-1, width), columns * width // info.ne[0]
    step = max(1, CHUNK // width)
    for start in range(0, len(rows), step):
        yield rows[start : start + step, :kept].tobytes()
    file.release()


def decoded_chunks(
    file: GgufFile,
    info: TensorInfo,
    ne: Sequence[int],
    change: Change | None,
    chosen: NDArray[np.int64] | None,
) -> Iterator[bytes]:
    """Yield whole rows in chunks. Pages of the source are released after reading, so that they do
    not accumulate in memory."""
    format, first = WeightFormat.member(info.type.name), 0
    width = ne[0] if ne else ROW
    row_bytes = max(1, width // info.type.block * info.type.bytes)
    step = max(1, CHUNK // max(width, 1))
    for raw in raw_of(file, info, chosen):
        n = len(raw) // row_bytes
        for start in range(0, n, step):
            part = raw[start * row_bytes : (start + step) * row_bytes]
            rows = format.dequantize(part).reshape(-1, width)
            made = rows if change is None else change(rows, first + start)
            yield made.astype("<f4", copy=False).tobytes()
        first += n
    file.release()


def zeros(ne: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes of an F32 tensor of zeros."""
    left = 4 * int(np.prod(ne))
    while left > 0:
        yield bytes(min(left, CHUNK))
        left -= CHUNK
