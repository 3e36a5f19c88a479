"""The interface of an engine that saves or loads its state wrongly, and helpers to make one.

The suite `states` must find it. Its runs are right, so self-tests of graphs do not include it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from lockstep.engine.batch import Batch
from lockstep.engine.memory.attention import SavedCells
from lockstep.engine.memory.recurrent import State
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.parts.reference_state import read_tree, write_tree
from lockstep.harness.adapters.reference import Reference

Alter = Callable[[Any, SavedCells | State], Any]
WRONG_SESSIONS: dict[str, "type[WrongSession]"] = {}


class WrongSession(Reference):
    """The reference with a wrong session file. `cells` changes the saved attention cache, and
    `state` changes a recurrent state. `near` changes the second of two caches, which holds the
    window layers. `go_on` changes the batches after loading."""

    group: ClassVar[str] = "sessions"
    mistake: ClassVar[str]
    memory: ClassVar[str]  # memory of a small model on which the mistake shows
    cells: ClassVar[Alter | None] = None
    state: ClassVar[Alter | None] = None
    near: ClassVar[Alter | None] = None

    def save(
        self,
        batches: Sequence[Batch],
        then: Sequence[Batch],
        path: str,
        sequence: int | None = None,
    ) -> tuple[F32, ...]:
        found = super().save(batches, then, path, sequence)
        write_tree(Path(path), self.alter(read_tree(Path(path))))
        return found

    def load(
        self, path: str, then: Sequence[Batch], sequence: int | None = None
    ) -> tuple[F32, ...]:
        return super().load(path, [self.go_on(batch, then[0]) for batch in then], sequence)

    def go_on(self, batch: Batch, first: Batch) -> Batch:
        return batch

    def alter(self, saved: Any) -> Any:
        if isinstance(saved, SavedCells):
            return self.cells(saved) if self.cells else saved
        if isinstance(saved, State):
            return self.state(saved) if self.state else saved
        if isinstance(saved, tuple) and self.near and isinstance(saved[1], SavedCells):
            return saved[0], self.near(saved[1])
        if isinstance(saved, tuple | list):
            return type(saved)(map(self.alter, saved))
        return saved

    @classmethod
    def add_fault(cls, name: str, mistake: str, memory: str, **changed: Any) -> type[Self]:
        """Register an engine. `changed` holds the changed methods."""
        held: dict[str, Any] = {"__module__": sys._getframe(1).f_globals["__name__"]}
        held |= {"mistake": mistake, "memory": memory, **changed}
        found = type(name, (cls,), held, name=f"mutant:{name}")
        WRONG_SESSIONS[f"mutant:{name}"] = found
        return found


def with_numbers(
    saved: SavedCells, change: Callable[[int, F32, F32], tuple[F32, F32]]
) -> SavedCells:
    """Return the cells with the keys and values that change(layer, keys, values) returns."""
    changed = {layer: change(layer, k, v) for layer, (k, v) in saved.numbers.items()}
    return replace(saved, numbers=changed)


def without_cells(saved: SavedCells, keep: Callable[[int, int], bool]) -> SavedCells:
    """Return the cells for which keep(number of the cell, number of cells) is true."""
    rows = [row for stream in saved.streams for row in stream]
    kept = [i for i in range(len(rows)) if keep(i, len(rows))]
    streams, at = [], 0
    for stream in saved.streams:
        streams.append([row for i, row in enumerate(stream, at) if i in kept])
        at += len(stream)
    numbers = {layer: (k[kept], v[kept]) for layer, (k, v) in saved.numbers.items()}
    return SavedCells(streams, numbers)
