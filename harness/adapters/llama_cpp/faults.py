"""Wrong results written into llama.cpp's own tensors, as if an op of its graph had a bug."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.records import Fault


class Injector:
    """Injects at most one fault. `honest`: the replaced value, if any bit changed; else None."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.honest: NDArray[Any] | None = None
        self.stale = b""

    def before(self, memory: Any) -> None:
        """Keep the bytes of the result's memory from before the op is computed."""
        self.stale = bytes(memory)

    def strike(self, value: NDArray[Any], memory: Any) -> None:
        assert self.fault is not None
        old = np.array(value, order="C")
        match self.fault.kind:
            case "stale":
                memory[:] = self.stale
            case _:
                rows = [at for at in np.ndindex(value.shape[:-1]) if usable(value[at])]
                if rows:
                    change(value[rows[self.fault.draw % len(rows)]], self.fault)
        if old.tobytes() != value.tobytes():
            self.honest = old


def usable(row: NDArray[Any]) -> bool:
    """Return True if a change of the row has an effect, because the row has a single finite value,
    or finite values that are not all equal."""
    finite = row[np.isfinite(row)] if row.dtype.kind == "f" else row
    return finite.size > 0 and bool((finite != finite[0]).any() or finite.size == 1)


def change(row: NDArray[Any], fault: Fault) -> None:
    """Change the row in place, as the fault says."""
    kind, draw, size = fault.kind, fault.draw, fault.size
    numbers = np.isfinite(row) if row.dtype.kind == "f" else np.ones(row.shape, bool)
    at = np.flatnonzero(numbers)
    low, high = at[row[at].argmin()], at[row[at].argmax()]
    if kind == "swap" and low != high:
        row[low], row[high] = row[high], row[low]
    elif row.dtype.kind in "iu":
        # another id of the row, because an invalid id would end the process
        one = at[draw % at.size]
        row[one] = row[one] + 1 if low == high else row[high if row[one] != row[high] else low]
    elif kind == "scale" and row[at].any():
        row[at] *= row.dtype.type(1 + size)
    else:
        row[at[draw % at.size]] += row.dtype.type(size * float(np.abs(row[at]).max() or 1))
