"""Uniform summary of a GGUF file, so that the parsers' answers can be compared.

Integers are int, floats are float (an F32 value widened exactly) with NaN as "nan", strings are str
with undecodable bytes as surrogates, and arrays are lists.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

VALUE_TYPES = (  # by gguf_type of ggml/include/gguf.h
    *("U8", "I8", "U16", "I16", "U32", "I32", "F32", "BOOL", "STR", "ARR", "U64", "I64", "F64"),
)
Scalar = int | float | bool | str


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def scalar(type_name: str, value: bool | int | float) -> Scalar:
    """Return a number or bool of that type as a Python value."""
    if type_name == "BOOL":
        return bool(value)
    if type_name in ("F32", "F64"):
        return "nan" if math.isnan(value) else float(value)
    return int(value)


def scalars(type_name: str, values: NDArray[Any]) -> list[Scalar]:
    """Return the `scalar` of each value; a vocabulary has some hundred thousand."""
    found: list[Scalar] = values.tolist()
    if type_name in ("F32", "F64") and np.isnan(values).any():
        return [scalar(type_name, value) for value in values]
    return found


def array_type(item_type: str) -> str:
    return f"ARR[{item_type}]"


def shape(ne: Iterable[int]) -> tuple[int, ...]:
    """Return the shape in ggml's order, fastest first, without trailing ones (but at least one)."""
    sizes = [int(n) for n in ne]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes) or (1,)
