"""Engines with one mistake in splits or caches, and limits for the shortest schedule that shows
it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.memory.attention import Attention, Placed
from lockstep.engine.memory.base import LayerView
from lockstep.engine.memory.hybrid import Hybrid
from lockstep.engine.memory.recurrent import Recurrent, StateView
from lockstep.engine.memory.schedule import Schedule
from lockstep.engine.memory.store import never
from lockstep.engine.memory.ubatch import Entries, Ubatch
from lockstep.engine.memory.window import Window
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference


@dataclass(frozen=True)
class Wrong:
    """A wrong memory. steps, tokens, ubatches: the largest numbers allowed in a minimised
    schedule."""

    engine: type[Reference]
    kind: str
    symptoms: tuple[str, ...]
    steps: int
    tokens: int
    ubatches: int = 99


class WithMemory(Reference):
    """The reference with `change` applied to every schedule. `blind`: True if ubatches and cells
    are hidden, as in most engines, so that only answers can show the fault."""

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
    """Forget the last token of a batch that takes several ubatches."""
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
    """Give all tokens of an ubatch the sequences of its first token."""
    memory = attention(run)
    right = memory.apply

    def apply(batch: Entries, placed: Placed) -> None:
        first = batch[placed.ubatch.order[0]].seqs
        right([replace(entry, seqs=first) for entry in batch], placed)

    if memory.unified:
        memory.apply = apply  # type: ignore[method-assign]


def reorders_outputs(run: Schedule) -> None:
    """Return logits in the order of computation."""
    right, compute, rows = run.decode, run.compute, []
    if compute is None:
        return

    def keep(ubatch: Batch, views: Mapping[int, LayerView]) -> F32:
        rows.append(compute(ubatch, views))
        return rows[-1]

    def decode(batch: Entries) -> tuple[int, F32 | None]:
        rows.clear()
        code, logits = right(batch)
        return code, None if logits is None else np.concatenate(rows)

    run.compute, run.decode = keep, decode  # type: ignore[method-assign]


def reuses_live_cell(run: Schedule) -> None:
    """Begin the search one cell before the head, even if that cell is in use."""
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
    """Move positions without their keys."""
    attention(run).store.rotate = never


def window_too_long(run: Schedule) -> None:
    """Let a token see one position more than its window."""
    memory = attention(run)
    window = memory.window
    if window:
        memory.is_hidden = lambda pos, looking: looking - pos > window  # type: ignore[method-assign]


def near(run: Schedule) -> Attention:
    assert isinstance(run.memory, Window)
    return run.memory.near


def lets_go_too_early(run: Schedule) -> None:
    """Reuse a cell that the next token still sees."""
    memory = near(run)
    memory.is_hidden = lambda pos, looking: looking - pos >= memory.window - 1  # type: ignore[method-assign]


@dataclass
class Through(LayerView):
    """A view that forwards every call, unless overridden."""

    right: LayerView

    def store(self, *numbers: F32) -> None:
        self.right.store(*numbers)

    def read(self) -> tuple[NDArray[Any], ...]:
        return self.right.read()

    def visible(self, window: int) -> NDArray[np.bool_]:
        return self.right.visible(window)


def seen_as(run: Schedule, wrong: Callable[[LayerView], LayerView]) -> None:
    right = run.compute
    assert right is not None

    def compute(ubatch: Batch, views: Mapping[int, LayerView]) -> F32:
        return right(ubatch, {layer: wrong(view) for layer, view in views.items()})

    run.compute = compute


class SeesOneMore(Through):
    def visible(self, window: int) -> NDArray[np.bool_]:
        return self.right.visible(window and window + 1)


class NoTail(Through):
    def store(self, *numbers: F32) -> None:
        tail, *states = numbers
        self.right.store(np.zeros_like(tail), *states)


class Crossed(Through):
    def read(self) -> tuple[NDArray[Any], ...]:
        numbers = self.right.read()
        return tuple(n[::-1] for n in numbers) if isinstance(self.right, StateView) else numbers


def window_without_oneself(run: Schedule) -> None:
    """Let a window of n cover n tokens before the current one, instead of n - 1."""
    seen_as(run, SeesOneMore)


def turns_all_keys_alike(run: Schedule) -> None:
    """Rotate moved keys of all layers by the frequencies of layers without a window."""
    memory = near(run)
    right = memory.store.rotate
    memory.store.rotate = lambda layer, keys, deltas: right(1, keys, deltas)


def forgets_the_tail(run: Schedule) -> None:
    """Let a convolution see no token of the previous ubatch."""
    seen_as(run, NoTail)


def crosses_states(run: Schedule) -> None:
    """Let the sequences of an ubatch continue from each other's states."""
    seen_as(run, Crossed)


def keeps_what_was_removed(run: Schedule) -> None:
    """Begin a sequence with the state of the sequence that was removed last."""
    memory = run.memory
    assert isinstance(memory, Recurrent)
    right, removed = memory.seq_rm, [memory.empty()]

    def seq_rm(seq: int, p0: int, p1: int) -> bool:
        before = dict(memory.states)
        done = right(seq, p0, p1)
        removed.extend(state for s, state in before.items() if s not in memory.states)
        return done

    memory.seq_rm = seq_rm  # type: ignore[method-assign]
    memory.empty = lambda: removed[-1]  # type: ignore[method-assign]


def shares_states(run: Schedule) -> None:
    """Let a copy of a sequence change when the original continues."""
    memory = run.memory
    assert isinstance(memory, Recurrent)
    right = memory.apply

    def apply(batch: Entries, placed: Ubatch) -> None:
        before = dict(memory.states)
        right(batch, placed)
        for seq, state in before.items():
            for other, old in before.items():
                if old is state and memory.states[other] is not old and seq != other:
                    state.numbers = memory.states[other].numbers

    memory.apply = apply  # type: ignore[method-assign]


def forgets_copied_numbers(run: Schedule) -> None:
    """Copy positions into another stream without the numbers."""
    attention(run).copy_stream = lambda source, to: None  # type: ignore[method-assign]


def moves_no_state(run: Schedule) -> None:
    """Move the cells of attention without the recurrent state."""
    assert isinstance(run.memory, Hybrid)
    run.memory.states.seq_add = lambda *of: None  # type: ignore[method-assign]


def changes_when_refused(run: Schedule) -> None:
    """Keep the first ubatches of a batch that does not fit."""
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


REFUSED = engine(changes_when_refused)  # only few schedules fill its cache
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
        wrong(window_too_long, "window", ("pos",), 3, 9, blind=True),
        wrong(lets_go_too_early, "window", ("pos", "logits"), 4, 12, blind=True),
        wrong(window_without_oneself, "window", ("logits",), 2, 9, blind=True),
        wrong(turns_all_keys_alike, "window", ("logits",), 4, 5, blind=True),
        wrong(forgets_the_tail, "recurrent", ("logits", "splitting"), 2, 3, 3, blind=True),
        wrong(crosses_states, "hybrid", ("logits", "splitting", "neighbours"), 2, 6, blind=True),
        wrong(keeps_what_was_removed, "recurrent", ("logits",), 3, 3, blind=True),
        wrong(shares_states, "recurrent", ("logits",), 4, 5, blind=True),
        wrong(moves_no_state, "hybrid", ("pos",), 2, 1),
        wrong(forgets_copied_numbers, "attention", ("logits",), 3, 3, 3),
    )
}
