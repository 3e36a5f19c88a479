"""Wrong results put into llama.cpp's own tensors, as if one op of its graph had a bug."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.adapters._llama_cpp_lib import GgmlTensor
from harness.records import Fault

SCALE, NUDGE = 1.01, 0.01  # of a row; of the largest value in one


class Injector:
    """Makes at most one fault; `done` says whether any bit changed."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.done = False
        self.stale = b""
        self.where: tuple[int, ...] = ()

    def before(self, tensor: GgmlTensor, memory: Any) -> None:
        """What lies in the result's memory before the op is computed."""
        if self.fault is not None and self.fault.kind == "stale":
            self.stale = bytes(memory)

    def due(self, step: int, ubatch: int, index: int) -> bool:
        at = self.fault
        return at is not None and (at.step, at.ubatch, at.index) == (step, ubatch, index)

    def strike(self, value: NDArray[Any], memory: Any) -> None:
        assert self.fault is not None
        old = np.array(value)
        match self.fault.kind:
            case "stale":
                memory[:] = self.stale
            case kind:
                rows = [at for at in np.ndindex(value.shape[:-1]) if usable(value[at])]
                if rows:
                    change(value[rows[self.fault.draw % len(rows)]], kind, self.fault.draw)
        self.done = old.tobytes() != np.array(value).tobytes()


def usable(row: NDArray[Any]) -> bool:
    """Finite somewhere, and not constant, so that a change of it is one."""
    finite = row[np.isfinite(row)] if row.dtype.kind == "f" else row
    return finite.size > 0 and bool((finite != finite[0]).any() or finite.size == 1)


def change(row: NDArray[Any], kind: str, draw: int) -> None:
    """Changes the row in place."""
    numbers = np.isfinite(row) if row.dtype.kind == "f" else np.ones(row.shape, bool)
    at = np.flatnonzero(numbers)
    low, high = at[row[at].argmin()], at[row[at].argmax()]
    if kind == "swap" and low != high:
        row[low], row[high] = row[high], row[low]
    elif row.dtype.kind == "i":
        row[at[draw % at.size]] += 1
    elif kind == "scale" and row[at].any():
        row[at] *= row.dtype.type(SCALE)
    else:
        size = np.abs(row[at]).max() or 1
        row[at[draw % at.size]] += row.dtype.type(NUDGE * size)
