"""What a context remembers, as a machine of positions: cells, streams, and what changes them.

Numbers live elsewhere (`engine.cell_cache`): this says where they go. It follows llama.cpp
(llama-kv-cache.cpp of llama-cpp-python 0.3.36) except where that breaks the promises of llama.h.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.cells import Cells
from engine.ubatch import Entries, Entry, Ubatch, split_equal, split_simple

Slot = list[list[int]]  # the cells of an ubatch, stream by stream
Saved = list[tuple[int, frozenset[int], tuple[int, int]]]  # position, sequences, (stream, cell)


@dataclass(frozen=True)
class Placed:
    """An ubatch and where its tokens go; `streams` are the streams of the rows of `cells`."""

    ubatch: Ubatch
    streams: list[int]
    cells: Slot


@dataclass
class Seen:
    """What can be observed of one call: every ubatch formed, the cells looked at."""

    ubatches: list[Ubatch] = field(default_factory=list)
    slots: list[list[Any]] = field(default_factory=list)


class Memory:
    """The contract. Positions are -1 for a sequence that has none."""

    def __init__(self, n_seq: int) -> None:
        self.n_seq = n_seq
        self.seen = Seen()

    def pos_min(self, seq: int) -> int:
        raise NotImplementedError

    def pos_max(self, seq: int) -> int:
        raise NotImplementedError

    def settle(self) -> None:
        """What operations have put off is done before a batch is placed."""

    def place(self, batch: Entries, n_ubatch: int) -> list[Any] | None:
        """Ubatches with their places, to be applied one after the other; None: there is no room."""
        raise NotImplementedError

    def apply(self, batch: Entries, placed: Any) -> None:
        """The tokens of an ubatch are in memory from now on."""
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """False if a part of a sequence cannot be removed; whole ones always can."""
        raise NotImplementedError

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        raise NotImplementedError

    def seq_keep(self, seq: int) -> None:
        raise NotImplementedError

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        raise NotImplementedError

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        raise NotImplementedError

    def save(self, seq: int) -> Any:
        """What `load` needs; -1 is everything."""
        raise NotImplementedError

    def load(self, seq: int, saved: Any) -> bool:
        """The sequence, or everything, becomes what was saved. False, and empty: no room."""
        raise NotImplementedError


class Pair(Memory):
    """Two memories in step: what they do to a sequence in the same way."""

    @property
    def both(self) -> tuple[Memory, Memory]:
        raise NotImplementedError

    def settle(self) -> None:
        for part in self.both:
            part.settle()

    def clear(self) -> None:
        for part in self.both:
            part.clear()

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        for part in self.both:
            part.seq_cp(source, to, p0, p1)

    def seq_keep(self, seq: int) -> None:
        for part in self.both:
            part.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        for part in self.both:
            part.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        for part in self.both:
            part.seq_div(seq, p0, p1, d)

    def save(self, seq: int) -> tuple[Any, Any]:
        first, second = self.both
        return first.save(seq), second.save(seq)


class Attention(Memory):
    """Streams of cells: one for all sequences (unified), or one for each.

    `window`: how many positions back a token sees; 0: all of them.
    """

    def __init__(self, *, size: int, n_seq: int, unified: bool, window: int = 0) -> None:
        super().__init__(n_seq)
        self.unified, self.window = unified or n_seq == 1, window
        self.streams = [Cells(size) for _ in range(1 if self.unified else n_seq)]
        self.purged = 0  # cells that a sequence lost to an overwritten one behind them
        self.purges_ahead = False  # has happened while places were sought for a later ubatch
        self.tried: list[Placed] = []  # the ubatches of the last batch that found room

    def stream(self, seq: int) -> int:
        return 0 if self.unified else seq

    def cells(self, seq: int) -> Cells:
        return self.streams[self.stream(seq)]

    def hidden(self, pos: int, looking: int) -> bool:
        """Whether a token at `looking` is too far on to see `pos`."""
        return self.window > 0 and looking - pos >= self.window

    def pos_min(self, seq: int) -> int:
        return self.cells(seq).pos_min(seq)

    def pos_max(self, seq: int) -> int:
        return self.cells(seq).pos_max(seq)

    # --- decoding -----------------------------------------------------------------------------

    def settle(self) -> None:
        for cells in self.streams:
            cells.shift = [0] * cells.size

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
        """Find cells for each ubatch as if those before it were in place; change nothing."""
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

    def find(self, batch: Entries, ubatch: Ubatch) -> Placed | None:
        seqs = sorted({s for at in ubatch.order for s in batch[at].seqs})
        for seq in seqs:
            stream = self.stream(seq)
            self.seen.slots.append([self.window, stream, *self.streams[stream].look()])
        streams = [0] if self.unified else seqs
        n = len(ubatch.order) // len(streams)
        cells = [self.streams[s].find(n, self.hidden) for s in streams]
        if any(found is None for found in cells):
            return None
        return Placed(ubatch, streams, [found for found in cells if found is not None])

    def apply(self, batch: Entries, placed: Placed) -> None:
        """Tokens into cells. A position that is overwritten takes all before it along, so that what
        is left of a sequence has no gaps."""
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
        """Within a stream, cells are shared; another stream becomes a copy, whole ranges only."""
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
        self.copied(source, to)

    def copied(self, source: int, to: int) -> None:
        """A stream's numbers have to follow."""

    def seq_keep(self, seq: int) -> None:
        for cells in self.streams:
            cells.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.cells(seq).seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        self.cells(seq).seq_div(seq, p0, p1, d)

    # --- state --------------------------------------------------------------------------------

    def save(self, seq: int) -> list[Saved]:
        """Stream by stream, the cells of a sequence that its next token could see, or all."""
        return [self.saved(stream, seq) for stream in range(len(self.streams))]

    def saved(self, stream: int, seq: int) -> Saved:
        cells = self.streams[stream]
        if seq < 0:
            return [(cells.pos[i], cells.seqs[i], (stream, i)) for i in cells.used()]
        last, one = cells.pos_max(seq), frozenset({seq})
        kept = [i for i in cells.of(seq) if not self.hidden(cells.pos[i], last)]
        return [(cells.pos[i], one, (stream, i)) for i in kept]

    def load(self, seq: int, saved: list[Saved]) -> bool:
        if seq < 0:
            return self.load_all(saved)
        self.cells(seq).seq_rm(seq, -1, -1)
        rows = [row for stream in saved for row in stream]
        if not rows:
            return True
        stream = self.stream(seq)
        cells = self.streams[stream]
        self.seen.slots.append([self.window, stream, *cells.look()])
        found = cells.find(len(rows), self.hidden)
        if found is None:
            return False
        entries = [Entry(0, pos, frozenset({seq})) for pos, _, _ in rows]
        ubatch = Ubatch(tuple(range(len(rows))), 1, equal=True)
        self.apply(entries, Placed(ubatch, [stream], [found]))
        self.restored(stream, found, [place for _, _, place in rows])
        return True

    def load_all(self, saved: list[Saved]) -> bool:
        self.clear()
        for stream, rows in enumerate(saved):
            for i, (pos, seqs, _) in enumerate(rows):
                self.streams[stream].put(i, pos, seqs)
            self.restored(stream, list(range(len(rows))), [place for _, _, place in rows])
        return True

    def restored(self, stream: int, found: list[int], places: list[tuple[int, int]]) -> None:
        """The numbers that were saved go into these cells."""
