"""Uniform summary of a GGUF file, so that the answers of several parsers can be compared.

Integers are int. Floats are float (an F32 value is widened exactly), with NaN as "nan". Strings are
str, with undecodable bytes as surrogates. Arrays are lists.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

VALUE_TYPES = (  # in the order of gguf_type in ggml/include/gguf.h
    *("U8", "I8", "U16", "I16", "U32", "I32", "F32", "BOOL", "STR", "ARR", "U64", "I64", "F64"),
)
Scalar = int | float | bool | str


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def scalar(type_name: str, value: bool | int | float) -> Scalar:
    """Return a number or bool of that type as a plain Python value."""
    if type_name == "BOOL":
        return bool(value)
    if type_name in ("F32", "F64"):
        return "nan" if math.isnan(value) else float(value)
    return int(value)


def scalars(type_name: str, values: NDArray[Any]) -> list[Scalar]:
    """Return the `scalar` of each value. A vocabulary has some hundred thousand values."""
    found: list[Scalar] = values.tolist()
    if type_name in ("F32", "F64") and np.isnan(values).any():
        return [scalar(type_name, value) for value in values]
    return found


def array_type(item_type: str) -> str:
    return f"ARR[{item_type}]"


def shape(ne: Iterable[int]) -> tuple[int, ...]:
    """Return the shape in ggml's order, fastest dimension first. Trailing dimensions of size one
    are removed, but at least one dimension stays."""
    sizes = [int(n) for n in ne]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes) or (1,)
