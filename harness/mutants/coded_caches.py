"""Engines whose quantised caches hold wrong codes. With F32 and F16 caches they are right.

`check --settings cache=TYPE` must find them. Self-tests of graphs do not include them.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.store import Store
from lockstep.engine.model import Model
from lockstep.engine.ops.coded import encode, is_coded
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.parts.replaced_methods import put, stores_of
from lockstep.harness.adapters.reference import Reference

Codes = NDArray[Any]
# arguments: right blocks, and their values before conversion
Change = Callable[[Codes, F32], Codes]
WRONG_CACHES: dict[str, "type[WrongCache]"] = {}


class WrongCache(Reference):
    """The reference with wrong blocks in its cache."""

    group: ClassVar[str] = "quantised caches"
    mistake: ClassVar[str]
    keys: ClassVar[tuple[Change, ...]]
    values: ClassVar[tuple[Change, ...]]

    def make_model(self) -> Model:
        model = super().make_model()
        put(model, "new_memory", self.new_memory)
        return model

    def new_memory(self, right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = right(**shape)
        for store in stores_of(memory):
            put(store, "write", self.writer_for(store))
        return memory

    def writer_for(self, store: Store) -> Callable[..., None]:
        def write(right: Callable[..., None], layer: int, cells: Any, k: F32, v: F32) -> None:
            right(layer, cells, k, v)
            at = store.place(cells)
            for kept, rows, changes in (
                (store.keys[layer], k, self.keys),
                (store.values[layer], v, self.values),
            ):
                for change in changes if is_coded(kept) else ():
                    kept[at] = change(kept[at], rows)

        return write

    @classmethod
    def add_fault(cls, name: str, mistake: str, keys: Change | None, values: Change | None) -> None:
        """Register an engine that changes the stored blocks of keys and of values."""
        held: dict[str, Any] = {"__module__": cls.__module__, "mistake": mistake}
        held |= {"keys": (keys,) if keys else (), "values": (values,) if values else ()}
        found = type(name, (cls,), held, name=f"mutant:{name}")
        WRONG_CACHES[f"mutant:{name}"] = found


def stale_scale(codes: Codes, _: F32) -> Codes:
    """Give each block the scale of the previous block in the row."""
    field = "d" if "d" in (codes.dtype.names or ()) else (codes.dtype.names or ("",))[0]
    found = codes.copy()
    found[field] = np.roll(codes[field], 1, axis=-1 if codes.shape[-1] > 1 else 1)
    return found


def cut_rows(codes: Codes, rows: F32) -> Codes:
    """Encode values whose mantissa is cut to four bits."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32) & np.uint32(0xFFF80000)
    return encode(bits.view(np.float32), codes)


def shift_values(codes: Codes, rows: F32) -> Codes:
    """Encode each value one place too far to the right in its row."""
    return encode(np.roll(rows, 1, axis=-1), codes)


def without_last_block(codes: Codes, _: F32) -> Codes:
    found = codes.copy()
    found[..., -1:] = np.zeros(1, codes.dtype)
    return found


fault = WrongCache.add_fault
fault(
    "cache-scale-stale", "each block has the scale of the previous block", stale_scale, stale_scale
)
fault("cache-values-cut", "values are cut to four bits before they are encoded", None, cut_rows)
fault("cache-keys-shifted", "keys are stored one element too far to the right", shift_values, None)
fault(
    "cache-values-shifted", "values are stored one element too far to the right", None, shift_values
)
fault("cache-last-block-lost", "the last block of each row is zero", without_last_block, None)
