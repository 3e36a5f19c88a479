"""Checks of answers about files: the content of one file, and the endings of many."""

from collections.abc import Collection
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.adapters.parts.file_summary import VALUE_TYPES, array_type
from lockstep.harness.adapters.parts.parsing import parse_answer
from lockstep.harness.answers.base import (
    MOST,
    Facts,
    MalformedAnswer,
    expect_plain,
    expect_record,
    expect_size,
    expect_type,
)
from lockstep.harness.records import EngineInfo, FileSummary, TensorSummary

MOST_DIMENSIONS = 4  # GGML_MAX_DIMS in ggml.h
MAY_BE_UNKNOWN = ("version", "alignment", "data_offset", "tensors", "types")
KINDS = {*VALUE_TYPES, *map(array_type, VALUE_TYPES)}


def check_describe(value: Any, facts: Facts) -> None:
    expect_record(value, EngineInfo, "the engine's description")


def check_metadata(value: Any, facts: Facts) -> None:
    """Check that every tensor lies in the file, and is as large as its type and shape say."""
    expect_record(value, FileSummary, "the summary of the file")
    for name in ("version", "alignment", "data_offset"):
        expect_size(getattr(value, name), name)
    for name in value.unknown:
        if name not in MAY_BE_UNKNOWN:
            raise MalformedAnswer("what is not shown", f"of {', '.join(MAY_BE_UNKNOWN)}", name)
    for key, (kind, held) in value.metadata.items():
        if kind not in KINDS and not (kind == "" and "types" in value.unknown):
            raise MalformedAnswer(f"the type of key {key[:80]!r}", "one of GGUF's", kind)
        expect_plain(held, f"the value of key {key[:80]!r}")
    check_tensors(value.tensors)
    n_bytes = MOST if facts.n_bytes is None else facts.n_bytes
    for tensor in value.tensors:
        end = value.data_offset + tensor.offset + tensor.n_bytes
        if end > n_bytes:
            where = f"the end of tensor {tensor.name[:80]!r}"
            raise MalformedAnswer(where, f"at most the file's {n_bytes} bytes", end)


def check_name_tensors(value: Any, facts: Facts, metadata: bytes) -> None:
    expect_type(value, tuple, "the tensors")
    for tensor in value:
        expect_type(tensor, TensorSummary, "a tensor")
    check_tensors(value)


def check_tensors(tensors: Collection[TensorSummary]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        expect_record(tensor, TensorSummary, "a tensor")
        where = f"tensor {tensor.name[:80]!r}"
        if tensor.name in seen:
            raise MalformedAnswer(where, "each name once", tensor.name)
        seen.add(tensor.name)
        check_size(tensor, where)


def check_size(tensor: TensorSummary, where: str) -> None:
    """Check that a tensor consists of whole blocks of equal size. The suites compare the size of
    the tensor, because readers report different sizes."""
    if not 1 <= len(tensor.ne) <= MOST_DIMENSIONS:
        raise MalformedAnswer(f"{where}.ne", f"1 to {MOST_DIMENSIONS} sizes", tensor.ne)
    numbers = {"offset": (tensor.offset,), "n_bytes": (tensor.n_bytes,), "ne": tensor.ne}
    for name, held in numbers.items():
        for number in held:
            expect_size(number, f"{where}.{name}")
    try:
        kind = type_by_name(tensor.type)
    except Unsupported:
        return  # the size of an unknown type is unknown
    n_blocks = prod(tensor.ne) // kind.block
    whole = tensor.n_bytes % n_blocks == 0 if n_blocks else tensor.n_bytes == 0
    if tensor.ne[0] % kind.block or not whole or n_blocks > tensor.n_bytes:
        n_bytes = n_blocks * kind.bytes
        of = f"{n_bytes} bytes for {tensor.type} {tensor.ne}, in whole blocks of {kind.block}"
        raise MalformedAnswer(where, of, tensor.n_bytes)


def check_parse(
    value: Any, facts: Facts, blob: NDArray[np.uint8], ends: NDArray[np.int64], way: str
) -> None:
    check_endings(value, ends)


def check_restore(
    value: Any, facts: Facts, blob: NDArray[np.uint8], ends: NDArray[np.int64], *_: Any
) -> None:
    check_endings(value, ends)


def check_endings(value: Any, ends: NDArray[np.int64]) -> None:
    expect_type(value, dict, "the endings of the files")
    try:
        found = parse_answer(value, len(ends))
    except (TypeError, ValueError) as error:
        raise MalformedAnswer("the endings", f"one for each of {len(ends)}", str(error)) from error
    columns = {"endings": np.uint8, "digests": np.uint64, "peaks": np.int64}
    for name, dtype in columns.items():
        if getattr(found, name).dtype != dtype:
            raise MalformedAnswer(name, np.dtype(dtype).name, getattr(found, name))
    expect_type(found.words, dict, "words")
    for at, text in found.words.items():
        if type(at) is not int or not 0 <= at < len(ends) or type(text) is not str:
            raise MalformedAnswer("words", "texts by the number of a file", at)
