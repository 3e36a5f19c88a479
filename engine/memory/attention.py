"""The memory of attention: cells for tokens, which can be shared, moved, copied and restored.

Source: llama-kv-cache.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.memory.base import LayerView, Memory
from lockstep.engine.memory.cells import Cells
from lockstep.engine.memory.store import NONE, Index, Kept, Numbers, Store
from lockstep.engine.memory.ubatch import Entries, Entry, Ubatch, split_equal, split_simple
from lockstep.engine.quants.base import F32

Row = tuple[int, frozenset[int], tuple[int, int]]  # position, sequences, (stream, cell)


@dataclass(frozen=True)
class Placed:
    """An ubatch and the cells of its tokens; row i of `cells` belongs to `streams[i]`."""

    ubatch: Ubatch
    streams: list[int]
    cells: list[list[int]]


@dataclass(frozen=True)
class SavedCells:
    """Rows of saved cells, stream by stream, and their keys and values."""

    streams: list[list[Row]]
    numbers: Kept

    def __bool__(self) -> bool:
        return any(self.streams)


class Attention(Memory):
    """Streams of cells: one for all sequences (unified), or one for each.

    `window`: the number of positions that a token sees; 0: all positions up to its own.
    """

    def __init__(
        self,
        *,
        size: int,
        n_seq: int,
        unified: bool,
        window: int = 0,
        numbers: Numbers = NONE,
    ) -> None:
        super().__init__(n_seq)
        self.unified, self.window = unified or n_seq == 1, window
        self.size = size
        self.streams = [Cells(size) for _ in range(1 if self.unified else n_seq)]
        # cells are numbered across all streams
        self.store = Store(numbers, size * len(self.streams))
        self.purged = 0  # number of cells that a sequence lost because a later cell was overwritten
        # True if this happened while places for a later ubatch were sought
        self.purges_ahead = False
        self.tried: list[Placed] = []  # ubatches of the last batch for which there was room

    def stream(self, seq: int) -> int:
        return 0 if self.unified else seq

    def cells(self, seq: int) -> Cells:
        return self.streams[self.stream(seq)]

    def is_hidden(self, pos: int, looking: int) -> bool:
        """Return True if the window of a token at position `looking` does not reach back to
        `pos`."""
        return self.window > 0 and looking - pos >= self.window

    def pos_min(self, seq: int) -> int:
        return self.cells(seq).pos_min(seq)

    def pos_max(self, seq: int) -> int:
        return self.cells(seq).pos_max(seq)

    # --- decoding -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Rotate the keys of cells that have moved."""
        for stream, cells in enumerate(self.streams):
            moved = [i for i in cells.used_cells() if cells.shift[i]]
            if moved:
                deltas = np.array([cells.shift[i] for i in moved], np.int32)
                self.store.turn(self.number_cells(stream, moved), deltas)
            cells.shift = [0] * cells.size

    def number_cells(self, stream: int, cells: Sequence[int]) -> Index:
        return np.array(cells, np.intp) + stream * self.size

    def split(self, batch: Entries, n_ubatch: int) -> list[Ubatch] | None:
        if self.unified:
            return split_simple(batch, n_ubatch)
        return split_equal(batch, n_ubatch, sequential=True) or None

    def place(self, batch: Entries, n_ubatch: int) -> list[Placed] | None:
        ubatches = self.split(batch, n_ubatch)
        if ubatches is None:
            return None
        self.seen.ubatches += ubatches
        return self.fit(batch, ubatches)

    def fit(self, batch: Entries, ubatches: Sequence[Ubatch]) -> list[Placed] | None:
        """Find cells for each ubatch as if the earlier ubatches were in place; change nothing."""
        before = [cells.copy() for cells in self.streams]
        placed: list[Placed] = []
        for ubatch in ubatches:
            slot = self.find(batch, ubatch)
            if slot is None:
                break
            purged = self.purged
            self.apply(batch, slot)
            self.purges_ahead |= bool(placed) and self.purged > purged
            placed.append(slot)
        self.streams, self.tried = before, placed
        return placed if len(placed) == len(ubatches) else None

    def look_at(self, stream: int) -> None:
        if self.seen.watched:
            self.seen.slots.append([self.window, stream, *self.streams[stream].look()])

    def find(self, batch: Entries, ubatch: Ubatch) -> Placed | None:
        seqs = sorted({s for at in ubatch.order for s in batch[at].seqs})
        for seq in seqs:
            stream = self.stream(seq)
            self.look_at(stream)
        streams = [0] if self.unified else seqs
        n = len(ubatch.order) // len(streams)
        cells = [self.streams[s].find(n, self.is_hidden) for s in streams]
        if any(found is None for found in cells):
            return None
        return Placed(ubatch, streams, [found for found in cells if found is not None])

    def apply(self, batch: Entries, placed: Placed) -> None:
        """Put tokens into cells. If a position is overwritten, all earlier positions of its
        sequence are removed too, so that the sequence has no gaps.
        """
        lost: dict[tuple[int, int], int] = {}
        order = iter(placed.ubatch.order)
        for stream, found in zip(placed.streams, placed.cells, strict=True):
            cells = self.streams[stream]
            for i in found:
                for seq in cells.seqs[i]:
                    key = (stream, seq)
                    lost[key] = max(lost.get(key, -1), cells.pos[i])
                entry = batch[next(order)]
                cells.put(i, entry.pos, entry.seqs)
            head = found[-1] + 1
            cells.head = head
        for (stream, seq), pos in lost.items():
            cells = self.streams[stream]
            head, before = cells.head, len(cells.of(seq))
            cells.seq_rm(seq, -1, pos + 1)
            cells.head = head
            self.purged += before - len(cells.of(seq))

    # --- operations ---------------------------------------------------------------------------

    def clear(self) -> None:
        for cells in self.streams:
            cells.reset()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        for cells in self.streams if seq < 0 else [self.cells(seq)]:
            cells.seq_rm(seq, p0, p1)
        return True

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        """Copy cells. Sequences of one stream share cells. To another stream, the whole sequence is
        copied.
        """
        if source == to:
            return
        if self.unified:
            self.streams[0].seq_cp(source, to, p0, p1)
            return
        target, cells = self.streams[to], self.streams[source]
        target.reset()
        for i in cells.of(source):
            target.put(i, cells.pos[i], frozenset({to}))
            target.shift[i] = cells.shift[i]
        target.head = cells.head
        self.copy_stream(source, to)

    def copy_stream(self, source: int, to: int) -> None:
        """Copy the keys and values of a stream to another stream."""
        at, into = (self.number_cells(stream, range(self.size)) for stream in (source, to))
        self.store.put(into, self.store.get(at, np.zeros(self.size, np.int32)))

    def seq_keep(self, seq: int) -> None:
        for cells in self.streams:
            cells.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.cells(seq).seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        self.cells(seq).seq_div(seq, p0, p1, d)

    # --- state --------------------------------------------------------------------------------

    def save(self, seq: int) -> SavedCells:
        """Return, stream by stream, the cells that a sequence's next token could see, or all cells
        (-1)."""
        streams = [self.rows(stream, seq) for stream in range(len(self.streams))]
        places = [place for rows in streams for _, _, place in rows]
        at = np.array([stream * self.size + i for stream, i in places], np.intp)
        moved = np.array([self.streams[stream].shift[i] for stream, i in places], np.int32)
        return SavedCells(streams, self.store.get(at, moved))

    def rows(self, stream: int, seq: int) -> list[Row]:
        cells = self.streams[stream]
        if seq < 0:
            return [(cells.pos[i], cells.seqs[i], (stream, i)) for i in cells.used_cells()]
        last, one = cells.pos_max(seq), frozenset({seq})
        kept = [i for i in cells.of(seq) if not self.is_hidden(cells.pos[i], last)]
        return [(cells.pos[i], one, (stream, i)) for i in kept]

    def load(self, seq: int, saved: SavedCells) -> bool:
        if seq < 0:
            return self.load_all(saved)
        self.cells(seq).seq_rm(seq, -1, -1)
        rows = [row for stream in saved.streams for row in stream]
        if not rows:
            return True
        stream = self.stream(seq)
        cells = self.streams[stream]
        self.look_at(stream)
        found = cells.find(len(rows), self.is_hidden)
        if found is None:
            return False
        entries = [Entry(0, pos, frozenset({seq})) for pos, _, _ in rows]
        ubatch = Ubatch(tuple(range(len(rows))), 1, equal=True)
        self.apply(entries, Placed(ubatch, [stream], [found]))
        self.store.put(self.number_cells(stream, found), saved.numbers)
        return True

    def load_all(self, saved: SavedCells) -> bool:
        self.clear()
        at = []
        for stream, rows in enumerate(saved.streams):
            for i, (pos, seqs, _) in enumerate(rows):
                self.streams[stream].put(i, pos, seqs)
            at.append(self.number_cells(stream, range(len(rows))))
        self.store.put(np.concatenate(at), saved.numbers)
        return True

    # --- numbers ------------------------------------------------------------------------------

    def views(self, batch: Entries, placed: Placed) -> Mapping[int, LayerView]:
        look = Look(self, batch, placed)
        return {layer: CellView(look, self.store, layer) for layer in self.store.keys}


class Look:
    """View of an ubatch's cells, and of all cells up to the last in use, which its tokens may
    see."""

    def __init__(self, memory: Attention, batch: Entries, placed: Placed) -> None:
        rows = zip(placed.streams, placed.cells, strict=True)
        self.at = np.concatenate([memory.number_cells(stream, cells) for stream, cells in rows])
        ends = [(s, max(memory.streams[s].live) + 1) for s in placed.streams]
        self.cells = np.concatenate([memory.number_cells(s, range(end)) for s, end in ends])
        held = [one for s, end in ends for one in memory.streams[s].seqs[:end]]
        pos = np.array([p for s, end in ends for p in memory.streams[s].pos[:end]], np.int32)
        entries = [batch[at] for at in placed.ubatch.order]
        first = [min(e.seqs) for e in entries]  # all sequences of a token see the same cells
        mine = {seq: np.array([seq in one for one in held]) for seq in set(first)}
        self.ahead = np.array([e.pos for e in entries], np.int32)[:, None] - pos  # (tokens, cells)
        self.past = np.array([mine[seq] for seq in first]) & (self.ahead >= 0)


class CellView(LayerView):
    def __init__(self, look: Look, store: Store, layer: int) -> None:
        self.look, self.numbers, self.layer = look, store, layer

    def store(self, *numbers: F32) -> None:
        """Store keys and values: (tokens, kv_heads, dim) each."""
        k, v = numbers
        self.numbers.write(self.layer, self.look.at, k, v)

    def read(self) -> tuple[NDArray[Any], ...]:
        """Return keys and values as stored: (cells, kv_heads, dim) each; not to be written to."""
        return self.numbers.read(self.layer, self.look.cells)

    def hadamard_sizes(self) -> tuple[int, int]:
        return self.numbers.hadamard_sizes(self.layer)

    def visible(self, window: int) -> NDArray[np.bool_]:
        """Return a mask of cells of the token's own sequence, up to the token's position."""
        return self.look.past & (self.look.ahead < window) if window else self.look.past
