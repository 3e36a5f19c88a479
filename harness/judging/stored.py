"""Numbers that were rounded to F16 or BF16 when they were stored, which is common in dumps."""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.harness.records import Site

# significant bits after the first, and the exponent of the smallest number
ROUNDED = {"F16": (10, -24), "BF16": (7, -133)}
LARGEST = {"F16": 65504.0, "BF16": float(np.finfo(np.float32).max)}
EXACT = ("F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")
KINDS = (*EXACT, *ROUNDED)  # readable types of safetensors


def half_step(value: NDArray[Any], kind: str) -> NDArray[np.float64]:
    """Return the largest distance between each value and the number before rounding; zero for other
    types."""
    if kind not in ROUNDED:
        return np.zeros(value.shape)
    bits, smallest = ROUNDED[kind]
    finite = np.isfinite(value)
    exponents = np.frexp(np.where(finite, value, 0.0).astype(np.float64))[1] - 1
    # frexp gives zero the exponent of 0.5, but the step at zero is the smallest of all
    of_step = np.where(value == 0, smallest, np.maximum(exponents - bits, smallest))
    return np.where(finite, np.ldexp(0.5, of_step), 0.0)


def step_of(value: NDArray[Any]) -> NDArray[np.float64]:
    """Return the distance to the next float32, zero if there is none."""
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.spacing(np.abs(value).astype(np.float32)).astype(np.float64)
    finite: NDArray[np.float64] = steps
    if not np.isfinite(steps).all():
        finite = np.nan_to_num(steps, nan=0.0, posinf=0.0)
    return finite


def looks_like(values: Iterable[NDArray[Any]]) -> str:
    """Return the type to which all these numbers were rounded, whatever type stores them; "" if
    there is none.

    Among unrounded numbers, one in 2^13 is an F16 number, and one in 2^16 is a BF16 number. BF16
    numbers are usually F16 numbers too, unless they are very large or small, so the coarser type is
    returned.
    """
    kinds, found = list(ROUNDED), False
    for value in values:
        finite = value[np.isfinite(value)].astype(np.float64)
        found |= bool(finite.any())
        kinds = [kind for kind in kinds if are_numbers_of(finite, kind)]
        if not kinds:
            return ""
    return kinds[-1] if found else ""


def all_in_halves(values: Mapping[Site, NDArray[Any]]) -> dict[Site, str]:
    """Return F16 or BF16 for each value if the numbers of all values have that type; else an empty
    dict.

    An engine that shows only such numbers is assumed to store them in this type.
    """
    numbers = {name: value for name, value in values.items() if value.dtype.kind == "f"}
    kind = looks_like(numbers.values())
    return dict.fromkeys(numbers, kind) if kind else {}


def are_numbers_of(value: NDArray[np.float64], kind: str) -> bool:
    """Return True if all values are numbers of this type, so that rounding changes none. Float64
    values lose nothing if they are divided by a power of two."""
    steps = value / (2 * half_step(value, kind))
    return bool((np.rint(steps) == steps).all() and (np.abs(value) <= LARGEST[kind]).all())


class Bf16File:
    """A safetensors file whose bytes Lockstep reads itself, because numpy has no BF16."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        (size,) = struct.unpack("<Q", self.file.read(8))
        self.rows = json.loads(self.file.read(size))
        self.data = 8 + size  # offset of the numbers

    def get_tensor(self, key: str) -> F32:
        row = self.rows[key]
        start, end = row["data_offsets"]
        self.file.seek(self.data + start)
        raw = np.frombuffer(self.file.read(end - start), "<u2")
        return (raw.astype(np.uint32) << 16).view(np.float32).reshape(row["shape"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
