"""Engines whose sessions do not continue from the saved state."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.memory.attention import SavedCells
from lockstep.engine.memory.recurrent import State
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.wrong_sessions import (
    WRONG_SESSIONS,
    WrongSession,
    with_numbers,
    without_cells,
)

add = WrongSession.add_fault


def in_half(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


def empty_state(state: State) -> State:
    numbers = {
        layer: tuple(np.zeros_like(x) for x in arrays) for layer, arrays in state.numbers.items()
    }
    return State(state.pos, numbers)


def turned(engine: Any, saved: SavedCells) -> SavedCells:
    def further(layer: int, k: F32, v: F32) -> tuple[F32, F32]:
        return engine.loaded.rotate(layer, k, np.ones(len(k), np.int32)), v

    return with_numbers(saved, further)


def owned_by_first(saved: SavedCells) -> Any:
    owners = [seqs for stream in saved.streams for _, seqs, _ in stream]
    return lambda i, n: 0 in owners[i]


add(
    "session-loses-last-token",
    "the newest token is not in the file",
    "attention",
    cells=lambda self, saved: without_cells(saved, lambda i, n: i < n - 1),
)
add(
    "session-positions-restart",
    "after a file is loaded, positions begin at 0 again",
    "attention",
    go_on=lambda self, batch, first: replace(batch, positions=batch.positions - first.positions[0]),
)
add(
    "session-keys-turned-again",
    "saving a session rotates its keys, already rotated, by one more position",
    "attention",
    cells=turned,
)
add(
    "session-rounded-to-f16",
    "keys and values are written in F16 although the cache is in F32",
    "attention",
    cells=lambda self, saved: with_numbers(saved, lambda i, k, v: (in_half(k), in_half(v))),
)
add(
    "session-lacks-values-of-a-layer",
    "the values of the second layer are not in the file",
    "attention",
    cells=lambda self, saved: with_numbers(
        saved, lambda i, k, v: (k, np.zeros_like(v) if i == 1 else v)
    ),
)
add(
    "session-keys-and-values-swapped",
    "keys and values are exchanged when a file is read",
    "attention",
    cells=lambda self, saved: with_numbers(saved, lambda i, k, v: (v, k)),
)
add(
    "session-of-first-sequence",
    "the state of all sequences holds only the first sequence",
    "attention",
    cells=lambda self, saved: without_cells(saved, owned_by_first(saved)),
)
add(
    "session-lacks-recurrent-states",
    "the file has the cells of attention, but recurrent states begin anew",
    "hybrid",
    state=lambda self, saved: empty_state(saved),
)
add(
    "session-lacks-states",
    "recurrent states begin anew",
    "recurrent",
    state=lambda self, saved: empty_state(saved),
)
add(
    "session-lacks-window",
    "the cache of layers with a window is not in the file",
    "window",
    near=lambda self, saved: without_cells(saved, lambda i, n: False),
)


class FirstOfName(WrongSession, name="mutant:session-of-first-of-its-name"):
    """The reference with a store of sessions by file name that is never updated."""

    mistake = "a file is read once, and later loads of its name return that session"
    memory = "attention"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: dict[str, bytes] = {}

    def load(
        self, path: str, then: Sequence[Batch], sequence: int | None = None
    ) -> tuple[F32, ...]:
        file = Path(path)
        file.write_bytes(self.kept.setdefault(path, file.read_bytes()))
        return super().load(path, then, sequence)


class FirstForAny(WrongSession, name="mutant:session-first-for-any"):
    """The reference that saves the first sequence, whichever sequence is requested."""

    mistake = "if a single sequence is saved, it is always the first"
    memory = "attention"

    def save(
        self,
        batches: Sequence[Batch],
        then: Sequence[Batch],
        path: str,
        sequence: int | None = None,
    ) -> tuple[F32, ...]:
        return super().save(batches, then, path, sequence if sequence is None else 0)


for each in (FirstOfName, FirstForAny):
    WRONG_SESSIONS[each.name] = each
