"""Mistakes in caches and batches: cells, storage, sequences, rows, and tokens after the prompt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.architectures.step import Step
from lockstep.engine.memory.attention import Attention, CellView, Look
from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.cells import Cells
from lockstep.engine.memory.store import Index, Store
from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.parts.replaced_methods import put, stores_of
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

AFTER = "the prompt is understood, but generated tokens are not"
DRIFTS = "small errors everywhere; long texts drift"
NONSENSE = "text is nonsense from the first token on"
MIXED = "users of one server see text of other users"
Arrays = tuple[NDArray[Any], ...]
Read = Callable[[int, Index], Arrays]


class Cache(Mistake):
    group = "cache"
    effect = AFTER
    site = "k_cache"


def in_half(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


def in_bf16(x: F32) -> F32:
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def in_int8(x: F32) -> F32:
    step = np.maximum(np.abs(x).max(axis=-1, keepdims=True), 1e-9) / 127
    found: F32 = (np.round(x / step) * step).astype(np.float32)
    return found


# --- contents of cells --------------------------------------------------------------------------

Cache.add_fault(
    "cache-one-slot-late",
    "decoded tokens are stored one cell too far, which leaves a gap",
    source="onnxruntime-genai #2354",
    store_write=lambda self, store, right, layer, cells, k, v: right(
        layer, cells + (len(cells) == 1), k, v
    ),
)
Cache.add_fault(
    "cache-keys-f16",
    "keys are stored in F16 although F32 is requested",
    DRIFTS,
    store_write=lambda self, store, right, layer, cells, k, v: right(layer, cells, in_half(k), v),
)
Cache.add_fault(
    "cache-values-bf16",
    "values are stored in BF16 although F32 is requested",
    DRIFTS,
    source="ik_llama.cpp #1521",
    site="v_cache",
    store_write=lambda self, store, right, layer, cells, k, v: right(layer, cells, k, in_bf16(v)),
)
Cache.add_fault(
    "cache-keys-int8",
    "keys are stored in eight bits although F32 is requested",
    DRIFTS,
    source="ik_llama.cpp #1206",
    store_write=lambda self, store, right, layer, cells, k, v: right(layer, cells, in_int8(k), v),
)
Cache.add_fault(
    "cache-shared-by-layers",
    "all layers write into the cache of the first",
    store_write=lambda self, store, right, layer, cells, k, v: right(0, cells, k, v),
    store_read=lambda self, store, right, layer, cells: right(0, cells),
)
Cache.add_fault(
    "cache-keys-for-values",
    "keys and values are exchanged when the cache is read",
    NONSENSE,
    store_read=lambda self, store, right, layer, cells: right(layer, cells)[::-1],
)


class CacheKeepsLast(Cache, name="mutant:cache-keeps-last"):
    mistake = "the cache cursor keeps only the last prompt token"
    effect = "only the last token of the first batch is remembered"
    first_of_all = True

    def store_write(
        self, store: Store, right: Callable[..., None], layer: int, cells: Index, k: F32, v: F32
    ) -> None:
        # the write position advances only after the batch, so all its tokens went to the same place
        store.keys[layer][cells] = 0
        store.values[layer][cells] = 0
        right(layer, cells[:1], k[-1:], v[-1:])


class ValuesTransposed(Cache, name="mutant:cache-values-transposed"):
    mistake = "values are read as if they were stored transposed"
    effect = NONSENSE
    site = "v_cache"

    def store_read(self, store: Store, right: Read, layer: int, cells: Index) -> Arrays:
        keys, values = right(layer, cells)
        return keys, values.transpose(2, 1, 0).reshape(values.shape)


class ReadsFirst(Cache, name="mutant:cache-read-before-written"):
    mistake = "the cache is read before the new tokens are in it"
    effect = NONSENSE

    def cells_store(self, view: CellView, right: Callable[..., None], *numbers: F32) -> None:
        before = tuple(array.copy() for array in CellView.read(view))
        view.read = lambda: before  # type: ignore[method-assign]
        right(*numbers)


class RotatedAgain(Cache, name="mutant:cache-keys-rotated-again"):
    mistake = "keys are stored rotated, and rotated again when they are read"
    site = "kq"

    def kq(self, right: Op, q: F32, k: NDArray[Any]) -> F32:
        params = self.loaded.graph.rope_params()
        assert params is not None
        return right(q, self.loaded.ops.rope(k, np.arange(len(k), dtype=np.int32), params))


# --- visible cells ------------------------------------------------------------------------------


class HiddenCells(Cache):
    """A fault that hides cells. `seen` returns the cells that may stay visible, as (tokens, cells)
    or a shape that broadcasts to it."""

    site = "kq_soft_max"

    def cells_visible(self, view: CellView, right: Callable[[int], Bools], window: int) -> Bools:
        return right(window) & self.seen(view.look)

    def seen(self, look: Look) -> Bools:
        raise NotImplementedError


def own_cells(look: Look) -> Bools:
    return np.isin(look.cells, look.at)


HiddenCells.add_fault(
    "cache-batch-sees-itself-alone",
    "a batch sees its own tokens but no earlier tokens",
    seen=lambda self, look: own_cells(look),
)
HiddenCells.add_fault(
    "cache-second-batch-sees-itself-alone",
    "a second batch of several tokens sees no earlier tokens",
    "the second question of a conversation is answered as if it were the first",
    seen=lambda self, look: own_cells(look) | (len(look.at) == 1),
)


class FirstOfUbatchMisses(HiddenCells, name="mutant:cache-ubatch-misses-the-one-before"):
    mistake = "after each 64 tokens of a prompt, the next token misses the token before it"
    effect = "long prompts are understood a little worse"

    def seen(self, look: Look) -> Bools:
        first = np.arange(len(look.at)) % 64 == 0
        first[0] = False
        hidden: Bools = first[:, None] & (look.cells == look.at[:, None] - 1)
        return ~hidden


HiddenCells.add_fault(
    "cache-ubatches-see-themselves-alone",
    "a prompt is computed in ubatches of 64, which do not see each other",
    "only the end of a long prompt is understood",
    seen=lambda self, look: (look.at[:, None] // 64 == look.cells // 64) | (len(look.at) <= 64),
)
HiddenCells.add_fault(
    "cache-ring-of-32",
    "the newest token takes the cell of the token 32 places before it",
    "the beginning of a text is forgotten",
    seen=lambda self, look: look.ahead < 32,
)
HiddenCells.add_fault(
    "cache-cells-beyond-64",
    "cells beyond the first 64 are ignored",
    "fine up to 64 tokens, then new tokens are not seen",
    seen=lambda self, look: np.arange(look.ahead.shape[1]) < 64,
)
HiddenCells.add_fault(
    "cache-cells-beyond-256",
    "cells beyond the first 256 are ignored",
    "fine up to 256 tokens, then new tokens are not seen",
    source="lucebox #128",
    seen=lambda self, look: np.arange(look.ahead.shape[1]) < 256,
)
# with one sequence, no op is wrong
Cache.add_fault(
    "cache-sequences-leak",
    "a token sees tokens of other sequences at earlier positions",
    MIXED,
    site="logits",
    layer=None,
    cells_visible=lambda self, view, right, window: (
        (view.look.ahead >= 0) & (view.look.ahead < (window or np.inf))
    ),
)


class NotCleared(Cache, name="mutant:cache-not-cleared"):
    mistake = "the cells of the previous run are not cleared, so tokens see them"
    effect = "the second answer is influenced by the first prompt"
    site = "logits"
    layer = None
    remembers = True
    newest: Store | None = None
    before: Store | None = None  # the store of the previous run
    used: ClassVar[WeakKeyDictionary[Store, int]] = WeakKeyDictionary()  # number of used cells

    def new_memory(self, right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = super().new_memory(right, **shape)
        for store in stores_of(memory):
            self.before, self.newest = self.newest, store
        return memory

    def store_write(self, store: Store, right: Op, layer: int, cells: Index, *kv: F32) -> None:
        self.used[store] = max(self.used.get(store, 0), int(cells.max()) + 1)
        right(layer, cells, *kv)

    def old(self, view: CellView) -> Arrays:
        before = self.before if view.numbers is self.newest else None
        n = self.used.get(before, 0) if before else 0
        return (before or view.numbers).read(view.layer, np.arange(n))

    def cells_read(self, view: CellView, right: Callable[[], Arrays]) -> Arrays:
        return tuple(np.concatenate(pair) for pair in zip(self.old(view), right(), strict=True))

    def cells_visible(self, view: CellView, right: Callable[[int], Bools], window: int) -> Bools:
        return np.pad(right(window), ((0, 0), (len(self.old(view)[0]), 0)), constant_values=True)


# --- operations, which `fuzz batch` asks for ----------------------------------------------------


class Operations(Cache):
    effect = "fine until a context is shifted, then nonsense"

    def new_memory(self, right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = super().new_memory(right, **shape)
        if isinstance(memory, Attention):
            self.alter(memory)
        return memory

    def alter(self, memory: Attention) -> None:
        raise NotImplementedError


class ShiftsAddUp(Operations, name="mutant:cache-shifts-add-up"):
    mistake = "a second shift applies the rotation of the first shift again"
    source = "llama.cpp #3825"

    def alter(self, memory: Attention) -> None:
        put(memory, "settle", lambda right: self.settle(right, memory.streams))

    def settle(self, right: Callable[[], None], streams: list[Cells]) -> None:
        before = [cells.shift for cells in streams]
        right()
        for cells, shift in zip(streams, before, strict=True):
            cells.shift = shift


class ShiftsNotRotated(Operations, name="mutant:cache-shifts-not-rotated"):
    mistake = "positions are shifted, but the rotation of keys is not updated"

    def alter(self, memory: Attention) -> None:
        memory.store.rotate = lambda layer, keys, deltas: keys


class ShiftsTheOtherWay(Operations, name="mutant:cache-shifts-other-way"):
    mistake = "keys are rotated the other way when positions are shifted"

    def alter(self, memory: Attention) -> None:
        right = memory.store.rotate
        memory.store.rotate = lambda layer, keys, deltas: right(layer, keys, -deltas)


# --- rows of a batch ----------------------------------------------------------------------------


class OutputsFromTheFirst(Cache, name="mutant:batch-outputs-from-the-first"):
    """An engine that returns the first rows. No op is wrong if all rows are outputs."""

    mistake = "if n outputs are asked for, the engine returns the first n rows"
    effect = "generation starts from the wrong word of the prompt"
    site = "logits"
    layer = None

    def graph_forward(self, right: Op, step: Step) -> F32:
        first = np.arange(len(step.batch)) < step.batch.outputs.sum()
        return right(replace(step, batch=replace(step.batch, outputs=first)))


class LastRowTwice(Cache, name="mutant:batch-odd-row-lost"):
    mistake = "rows are processed in pairs, and the last of an odd number is left out"
    effect = "every other prompt is misunderstood"
    site = "Qcur"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if len(out) % 2 and len(out) > 1:
            out[-1] = 0
        return out


class FifthRowOfFive(Cache, name="mutant:batch-fifth-row-of-five"):
    """An engine with a kernel for four rows and a kernel for one row, which begins one row too
    early."""

    mistake = "if whole tiles of 8 leave five rows, the last row repeats the row before it"
    effect = "one prompt in eight is misunderstood"
    site = "Qcur"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if len(out) > 8 and len(out) % 8 == 5:
            out[-1] = out[-2]
        return out
