"""Caches and batches gone wrong: cells, storage, sequences, rows, what comes after the prompt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.architectures.step import Step
from lockstep.engine.memory.attention import Attention, CellView
from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.cells import Cells
from lockstep.engine.memory.store import Index, Store
from lockstep.engine.model import Model
from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op, put, stores_of

AFTER = "the prompt is understood; what is generated is not"
DRIFTS = "small errors everywhere; long texts drift"
MIXED = "users of one server see what others wrote"
Arrays = tuple[NDArray[Any], ...]


class Cache(Mistake):
    group = "cache"
    effect = AFTER
    site = "k_cache"


# --- what a cell holds --------------------------------------------------------------------------


class LateStore(Store):
    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        super().write(layer, cells + (len(cells) == 1), k, v)


class OneSlotLate(Cache, name="mutant:cache-one-slot-late"):
    mistake = "what is decoded goes one cell too far, which leaves a hole"
    source = "onnxruntime-genai #2354"
    cells = LateStore


class HalfStore(Store):
    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        super().write(layer, cells, k.astype(np.float16).astype(np.float32), v)


class KeysInHalf(Cache, name="mutant:cache-keys-f16"):
    mistake = "keys are kept in F16 where F32 is asked for"
    effect = DRIFTS
    cells = HalfStore


class Bf16Store(Store):
    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        cut = np.ascontiguousarray(v).view(np.uint32) & np.uint32(0xFFFF0000)
        super().write(layer, cells, k, cut.view(np.float32))


class ValuesInBf16(Cache, name="mutant:cache-values-bf16"):
    mistake = "values are kept in BF16 where F32 is asked for"
    effect = DRIFTS
    source = "ik_llama.cpp #1521"
    site = "v_cache"
    cells = Bf16Store


class Int8Store(Store):
    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        step = np.maximum(np.abs(k).max(axis=-1, keepdims=True), 1e-9) / 127
        super().write(layer, cells, (np.round(k / step) * step).astype(np.float32), v)


class KeysInInt8(Cache, name="mutant:cache-keys-int8"):
    mistake = "keys are kept in eight bits where F32 is asked for"
    effect = DRIFTS
    source = "ik_llama.cpp #1206"
    cells = Int8Store


class OneLayer(Store):
    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        super().write(0, cells, k, v)

    def read(self, layer: int, cells: Index) -> tuple[NDArray[Any], NDArray[Any]]:
        return super().read(0, cells)


class LayersShare(Cache, name="mutant:cache-shared-by-layers"):
    mistake = "all layers write into the cache of the first"
    cells = OneLayer


class Exchanged(Store):
    def read(self, layer: int, cells: Index) -> tuple[NDArray[Any], NDArray[Any]]:
        keys, values = super().read(layer, cells)
        return values, keys


class KeysForValues(Cache, name="mutant:cache-keys-for-values"):
    mistake = "keys are read where values lie, and values where keys lie"
    effect = "text is nonsense from the first token on"
    cells = Exchanged


class Transposed(Store):
    def read(self, layer: int, cells: Index) -> tuple[NDArray[Any], NDArray[Any]]:
        keys, values = super().read(layer, cells)
        return keys, values.transpose(2, 1, 0).reshape(values.shape)


class ValuesTransposed(Cache, name="mutant:cache-values-transposed"):
    mistake = "values are read as if they were kept transposed"
    effect = "text is nonsense from the first token on"
    site = "v_cache"
    cells = Transposed


class Early(CellView):
    def store(self, *numbers: F32) -> None:
        self.before = tuple(array.copy() for array in super().read())
        super().store(*numbers)

    def read(self) -> Arrays:
        return self.before


class ReadsFirst(Cache, name="mutant:cache-read-before-written"):
    mistake = "the cache is read before the new tokens are in it"
    effect = "text is nonsense from the first token on"
    view = Early


class RotatedAgain(Cache, name="mutant:cache-keys-rotated-again"):
    mistake = "keys that are kept rotated are rotated once more when they are read"
    site = "kq"

    def kq(self, right: Op, q: F32, k: NDArray[Any]) -> F32:
        params = self.loaded.graph.rope_params()
        assert params is not None
        return right(q, self.loaded.ops.rope(k, np.arange(len(k), dtype=np.int32), params))


# --- which cells are seen -----------------------------------------------------------------------


class Alone(CellView):
    def visible(self, window: int) -> Bools:
        return super().visible(window) & np.isin(self.look.cells, self.look.at)


class SeesItselfAlone(Cache, name="mutant:cache-batch-sees-itself-alone"):
    mistake = "a batch sees its own tokens and none of those before"
    site = "kq_soft_max"
    view = Alone


class SeveralAlone(CellView):
    def visible(self, window: int) -> Bools:
        own = np.isin(self.look.cells, self.look.at)
        return super().visible(window) & (own | (len(self.look.at) == 1))


class SecondSeesItselfAlone(Cache, name="mutant:cache-second-batch-sees-itself-alone"):
    mistake = "a second batch of several tokens sees none of those before"
    effect = "the second question of a conversation is answered as if it were the first"
    site = "kq_soft_max"
    view = SeveralAlone


class WithoutTheOneBefore(CellView):
    def visible(self, window: int) -> Bools:
        first = np.arange(len(self.look.at)) % 64 == 0
        first[0] = False
        hidden: Bools = first[:, None] & (self.look.cells == self.look.at[:, None] - 1)
        return super().visible(window) & ~hidden


class FirstOfUbatchMisses(Cache, name="mutant:cache-ubatch-misses-the-one-before"):
    mistake = "the first token of each further 64 of a prompt does not see the one before"
    effect = "long prompts are understood a little worse"
    site = "kq_soft_max"
    view = WithoutTheOneBefore


class WrongBlocks(CellView):
    def visible(self, window: int) -> Bools:
        same: Bools = self.look.at[:, None] // 64 == self.look.cells // 64
        return super().visible(window) & (same | (len(self.look.at) <= 64))


class UbatchesAlone(Cache, name="mutant:cache-ubatches-see-themselves-alone"):
    mistake = "a prompt is computed in ubatches of 64, which do not see each other"
    effect = "only the end of a long prompt is understood"
    site = "kq_soft_max"
    view = WrongBlocks


class Ring(CellView):
    def visible(self, window: int) -> Bools:
        return super().visible(window) & (self.look.ahead < 32)


class RingOf32(Cache, name="mutant:cache-ring-of-32"):
    mistake = "the newest token takes the cell of the 32nd before it"
    effect = "the beginning of a text is forgotten"
    site = "kq_soft_max"
    view = Ring


class First64(CellView):
    def visible(self, window: int) -> Bools:
        found = super().visible(window)
        found[:, 64:] = False
        return found


class CellsBeyond64(Cache, name="mutant:cache-cells-beyond-64"):
    mistake = "cells beyond the first 64 are not looked at"
    effect = "fine up to 64 tokens, then what is new is not seen"
    site = "kq_soft_max"
    view = First64


class First256(CellView):
    def visible(self, window: int) -> Bools:
        found = super().visible(window)
        found[:, 256:] = False
        return found


class CellsBeyond256(Cache, name="mutant:cache-cells-beyond-256"):
    mistake = "cells beyond the first 256 are not looked at"
    effect = "fine up to 256 tokens, then what is new is not seen"
    source = "lucebox #128"
    site = "kq_soft_max"
    view = First256


class AllSequences(CellView):
    def visible(self, window: int) -> Bools:
        return (self.look.ahead >= 0) & (self.look.ahead < (window or np.inf))


class SequencesLeak(Cache, name="mutant:cache-sequences-leak"):
    """No op is wrong while there is one sequence."""

    mistake = "a token sees those of other sequences at earlier positions"
    effect = MIXED
    site = "logits"
    layer = None
    view = AllSequences


class Tracked(Store):
    """Knows how many of its cells were written."""

    used = 0
    before: Store | None = None

    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        self.used = max(self.used, int(cells.max()) + 1)
        super().write(layer, cells, k, v)


class Haunted(CellView):
    def old(self) -> tuple[NDArray[Any], NDArray[Any]]:
        before: Any = getattr(self.numbers, "before", None)
        cells = np.arange(before.used if before else 0)
        return (before or self.numbers).read(self.layer, cells)

    def read(self) -> Arrays:
        pairs = zip(self.old(), super().read(), strict=True)
        return tuple(np.concatenate(pair) for pair in pairs)

    def visible(self, window: int) -> Bools:
        return np.pad(
            super().visible(window), ((0, 0), (len(self.old()[0]), 0)), constant_values=True
        )


class NotCleared(Cache, name="mutant:cache-not-cleared"):
    mistake = "the cells of the previous run are still there and seen"
    effect = "the second prompt is answered with the first in mind"
    site = "logits"
    layer = None
    cells = Tracked
    view = Haunted
    remembers = True
    last: Any = None

    def new_memory(self, right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = super().new_memory(right, **shape)
        for store in stores_of(memory):
            store.before, self.last = self.last, store  # type: ignore[attr-defined]
            if store.before:  # type: ignore[attr-defined]
                store.before.before = None  # type: ignore[attr-defined]
        return memory


# --- operations, which `fuzz batch` asks for ----------------------------------------------------


class Operations(Cache):
    effect = "fine until a context is shifted, and nonsense from there on"

    def new_memory(self, right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = super().new_memory(right, **shape)
        if isinstance(memory, Attention):
            self.alter(memory)
        return memory

    def alter(self, memory: Attention) -> None:
        raise NotImplementedError


class ShiftsAddUp(Operations, name="mutant:cache-shifts-add-up"):
    mistake = "a second shift rotates by the first once more"
    source = "llama.cpp #3825"

    def alter(self, memory: Attention) -> None:
        put(memory, "settle", lambda right: self.settle(right, memory.streams))

    def settle(self, right: Callable[[], None], streams: list[Cells]) -> None:
        before = [cells.shift for cells in streams]
        right()
        for cells, shift in zip(streams, before, strict=True):
            cells.shift = shift


class ShiftsNotRotated(Operations, name="mutant:cache-shifts-not-rotated"):
    mistake = "positions are shifted, and keys stay rotated as they were"

    def alter(self, memory: Attention) -> None:
        memory.store.rotate = lambda layer, keys, deltas: keys


class ShiftsTheOtherWay(Operations, name="mutant:cache-shifts-other-way"):
    mistake = "keys are rotated the other way when positions are shifted"

    def alter(self, memory: Attention) -> None:
        right = memory.store.rotate
        memory.store.rotate = lambda layer, keys, deltas: right(layer, keys, -deltas)


# --- rows of a batch ----------------------------------------------------------------------------


class OutputsFromTheFirst(Cache, name="mutant:batch-outputs-from-the-first"):
    """No op is wrong while the outputs of all rows are asked for."""

    mistake = "of n outputs that are asked for, the first n rows are given"
    effect = "generation starts from the wrong word of the prompt"
    site = "logits"
    layer = None

    def change(self, model: Model) -> None:
        put(model.graph, "forward", self.forward)

    def forward(self, right: Op, step: Step) -> F32:
        first = np.arange(len(step.batch)) < step.batch.outputs.sum()
        return right(replace(step, batch=replace(step.batch, outputs=first)))


class LastRowTwice(Cache, name="mutant:batch-odd-row-lost"):
    mistake = "rows are taken in pairs, and the last of an odd number is left out"
    effect = "every other prompt is misunderstood"
    site = "Qcur"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if len(out) % 2 and len(out) > 1:
            out[-1] = 0
        return out


class FifthRowOfFive(Cache, name="mutant:batch-fifth-row-of-five"):
    """Of kernels for four rows and for one, the last begins a row too early."""

    mistake = "behind whole tiles of 8 rows the last of five is the one before"
    effect = "one prompt in eight is misunderstood"
    site = "Qcur"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if len(out) > 8 and len(out) % 8 == 5:
            out[-1] = out[-2]
        return out
