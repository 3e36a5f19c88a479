"""The contract of an operation that engines offer as a single op but ggml does not.

An operation takes named arrays and parameters, and returns for each named result its value in
float64 and the allowed error of an honest float32 implementation. Shapes are numpy's, slowest
first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.ggml.base import EXACT
from lockstep.engine.ops.near import F64, Expected, Near, exact, near
from lockstep.engine.ops.products import of_floats
from lockstep.engine.registry import import_members

Result = Expected | Mapping[str, Expected]  # several by name if there is more than one right result


@dataclass(frozen=True, eq=False)
class Call:
    inputs: Mapping[str, NDArray[Any]]
    params: Mapping[str, int | float | str]

    def __getitem__(self, name: str) -> F64:
        """Return an input in float64."""
        return self.inputs[name].astype(np.float64)

    def exact(self, name: str) -> Near:
        return exact(self[name])

    def number(self, name: str) -> int:
        return int(self.params[name])

    def real(self, name: str) -> float:
        """Return a parameter as float32 holds it."""
        return float(np.float32(self.params[name]))


Operation = Callable[[Call], dict[str, Result]]
OPERATIONS: dict[str, Operation] = {}


def operation(name: str) -> Callable[[Operation], Operation]:
    """Register the function that computes the operation of this name."""

    def add(function: Operation) -> Operation:
        if name in OPERATIONS:
            raise TypeError(f"there already is an operation {name}")
        OPERATIONS[name] = function
        return function

    return add


def operate(name: str, call: Call) -> dict[str, dict[str, Expected]]:
    """Compute each result in each allowed way; the way is "plain" if there is only one.

    Raises Unsupported for an unknown name.
    """
    import_members("lockstep.engine.ops.fused")
    if name not in OPERATIONS:
        raise Unsupported(f"no operation {name!r} {choices(name, sorted(OPERATIONS))}")
    with np.errstate(all="ignore"):
        found = OPERATIONS[name](call)
    return {
        key: {"plain": value} if isinstance(value, Expected) else dict(value)
        for key, value in found.items()
    }


def product(a: F64, b: F64) -> Near:
    """Multiply (.., m, k) and (.., k, n) -> (.., m, n), summed in float32 in any order."""
    return near(of_floats(a, b, ANY_ENGINE))


def expect_copy(value: NDArray[Any]) -> Expected:
    return Expected(value, 0.0, EXACT)
