"""Engines whose splitting or cache is wrong in one way, and what shows it soonest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.cell_cache import CellCache
from engine.memory import Attention, Placed
from engine.memory_hybrid import Hybrid
from engine.memory_window import Window
from engine.schedule import Schedule
from engine.ubatch import Entries, Ubatch
from harness.adapters.reference import Reference


@dataclass(frozen=True)
class Wrong:
    """steps, tokens: what a minimised schedule needs at most; ubatches: how many it may make."""

    engine: type[Reference]
    kind: str
    symptoms: tuple[str, ...]
    steps: int
    tokens: int
    ubatches: int = 99


class WithMemory(Reference):
    """The reference with `change` made to every schedule that it runs. `blind`: it shows neither
    ubatches nor cells, as most engines, so only what it answers can tell."""

    change: Callable[[Schedule], None]
    blind = False

    def make_schedule(self, plan: Mapping[str, Any]) -> Schedule:
        run = super().make_schedule(plan)
        type(self).change(run)
        return run

    def schedule(self, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        answers = super().schedule(plan)
        unseen = dict.fromkeys(("ubatches", "slots", "order"))
        return [answer | unseen for answer in answers] if self.blind else answers


def attention(run: Schedule) -> Attention:
    memory = run.memory.near if isinstance(run.memory, Window) else run.memory
    assert isinstance(memory, Attention)
    return memory


def drops_last(run: Schedule) -> None:
    """The last token of a batch is forgotten when the batch takes several ubatches."""
    memory = attention(run)
    right = memory.split

    def split(batch: Entries, n_ubatch: int) -> list[Ubatch] | None:
        ubatches = right(batch, n_ubatch)
        if ubatches and len(ubatches) > 1 and len(ubatches[-1].order) > 1:
            last = ubatches[-1]
            ubatches[-1] = replace(last, order=last.order[:-1], n_seqs=max(last.n_seqs - 1, 1))
        return ubatches

    memory.split = split  # type: ignore[method-assign]


def mixes_sequences(run: Schedule) -> None:
    """An ubatch belongs to the sequences of its first token."""
    memory = attention(run)
    right = memory.apply

    def apply(batch: Entries, placed: Placed) -> None:
        first = batch[placed.ubatch.order[0]].seqs
        right([replace(entry, seqs=first) for entry in batch], placed)

    if memory.unified:
        memory.apply = apply  # type: ignore[method-assign]


def reorders_outputs(run: Schedule) -> None:
    """Logits come in the order of computation."""
    run.in_order = lambda batch, ubatches, rows: rows  # type: ignore[method-assign]


def reuses_live_cell(run: Schedule) -> None:
    """The search begins one cell before the head, whether or not that cell is in use."""
    memory = attention(run)
    right = memory.find

    def find(batch: Entries, ubatch: Ubatch) -> Placed | None:
        placed = right(batch, ubatch)
        if placed is None:
            return None
        cells = [[max(row[0] - 1, 0), *row[1:]] for row in placed.cells]
        return replace(placed, cells=cells)

    memory.find = find  # type: ignore[method-assign]


def forgets_to_shift(run: Schedule) -> None:
    """Positions move and keys do not."""
    memory = attention(run)
    if isinstance(memory, CellCache):
        memory.rotate = lambda keys, deltas: keys


def window_too_long(run: Schedule) -> None:
    """A token sees one position more than the window has."""
    memory = attention(run)
    window = memory.window
    if window:
        memory.hidden = lambda pos, looking: looking - pos > window  # type: ignore[method-assign]


def forgets_copied_numbers(run: Schedule) -> None:
    """A copy of a sequence into a stream of its own has the positions and not the numbers."""
    attention(run).copied = lambda source, to: None  # type: ignore[method-assign]


def moves_no_state(run: Schedule) -> None:
    """Cells of attention move and the recurrent state does not."""
    assert isinstance(run.memory, Hybrid)
    run.memory.states.seq_add = lambda *of: None  # type: ignore[method-assign]


def changes_when_refused(run: Schedule) -> None:
    """A batch that does not fit leaves its first ubatches behind."""
    memory = attention(run)

    def fit(batch: Entries, ubatches: Sequence[Ubatch]) -> list[Placed] | None:
        before = [cells.copy() for cells in memory.streams]
        placed: list[Placed] = []
        for ubatch in ubatches:
            slot = memory.find(batch, ubatch)
            if slot is None:
                return None
            memory.apply(batch, slot)
            placed.append(slot)
        memory.streams = before
        return placed

    memory.fit = fit  # type: ignore[method-assign]


def engine(change: Callable[[Schedule], None], *, blind: bool = False) -> type[Reference]:
    name = change.__name__.replace("_", "-") + ("-blind" if blind else "")
    row = {"name": name, "change": staticmethod(change), "blind": blind}
    return type(name, (WithMemory,), row)


def wrong(change: Callable[[Schedule], None], kind: str, *row: Any, blind: bool = False) -> Wrong:
    return Wrong(engine(change, blind=blind), kind, *row)


REFUSED = engine(changes_when_refused)  # its cache must be full, which few schedules do
WRONG = {
    row.engine.name: row
    for row in (
        wrong(drops_last, "attention", ("pos", "ubatches", "splitting"), 1, 5, 2),
        wrong(drops_last, "attention", ("pos", "logits", "splitting"), 1, 5, 2, blind=True),
        wrong(mixes_sequences, "attention", ("pos",), 1, 2, 1),
        wrong(reorders_outputs, "attention", ("logits", "splitting"), 1, 4, 3),
        wrong(reuses_live_cell, "attention", ("pos", "slots"), 2, 2, 2),
        wrong(reuses_live_cell, "attention", ("pos", "logits"), 2, 2, 2, blind=True),
        wrong(forgets_to_shift, "attention", ("logits",), 3, 3, 3),
        wrong(window_too_long, "window", ("pos", "slots"), 3, 9),
        wrong(moves_no_state, "hybrid", ("pos",), 2, 1),
        wrong(forgets_copied_numbers, "attention", ("logits",), 3, 3, 3),
    )
}
