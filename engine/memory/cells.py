"""The cells of one stream of a KV cache, each with its position and its sequences.

Source: llama-kv-cells.h and `llama_kv_cache` in llama-kv-cache.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from lockstep.engine.memory.ubatch import SeqSet

END = 2**31 - 1  # end of an open range of positions
EMPTY = -1


def span(p0: int, p1: int) -> tuple[int, int]:
    """Return the range of positions; a negative end means an open end."""
    return max(p0, 0), END if p1 < 0 else p1


@dataclass
class Cells:
    """Cells of a stream. `shift`: how far a cell's position has moved since its key was last
    rotated.
    """

    size: int
    pos: list[int] = field(default_factory=list)
    seqs: list[SeqSet] = field(default_factory=list)
    shift: list[int] = field(default_factory=list)
    live: set[int] = field(default_factory=set)  # numbers of the used cells
    head: int = 0  # the cell at which a search for free cells begins

    def __post_init__(self) -> None:
        if not self.pos:
            self.reset()

    def reset(self) -> None:
        self.pos = [EMPTY] * self.size
        self.seqs = [frozenset()] * self.size
        self.shift = [0] * self.size
        self.live = set()
        self.head = 0

    def copy(self) -> "Cells":
        kept = (self.pos[:], self.seqs[:], self.shift[:], self.live.copy())
        return Cells(self.size, *kept, self.head)

    # --- looking ------------------------------------------------------------------------------

    def used_cells(self) -> list[int]:
        return sorted(self.live)

    def of(self, seq: int, p0: int = 0, p1: int = END) -> list[int]:
        """Return the cells of a sequence in a range of positions."""
        return [i for i in self.used_cells() if seq in self.seqs[i] and p0 <= self.pos[i] < p1]

    def pos_min(self, seq: int) -> int:
        return min((self.pos[i] for i in self.live if seq in self.seqs[i]), default=-1)

    def pos_max(self, seq: int) -> int:
        return max((self.pos[i] for i in self.live if seq in self.seqs[i]), default=-1)

    # --- changing -----------------------------------------------------------------------------

    def put(self, i: int, pos: int, seqs: SeqSet) -> None:
        self.pos[i], self.seqs[i], self.shift[i] = pos, seqs, 0
        self.live.add(i)

    def free(self, i: int) -> None:
        self.put(i, EMPTY, frozenset())
        self.live.discard(i)

    def leave(self, i: int, seq: int) -> bool:
        """Remove a sequence from a cell. Return True if the cell is then empty."""
        self.seqs[i] -= {seq}
        if not self.seqs[i]:
            self.free(i)
        return not self.seqs[i]

    def search_from(self, freed: list[int]) -> None:
        """Move the head back to the first freed cell if that cell lies before the head. The next
        search begins at the head.
        """
        if freed and freed[0] < self.head:
            self.head = freed[0]

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Remove positions of a sequence; a negative id means every sequence."""
        p0, p1 = span(p0, p1)
        if seq >= 0:
            freed = [i for i in self.of(seq, p0, p1) if self.leave(i, seq)]
        else:
            freed = [i for i in self.used_cells() if p0 <= self.pos[i] < p1]
            for i in freed:
                self.free(i)
        self.search_from(freed)

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        for i in self.of(source, *span(p0, p1)):
            self.seqs[i] |= {to}

    def seq_keep(self, seq: int) -> None:
        freed = [i for i in self.used_cells() if seq not in self.seqs[i]]
        for i in freed:
            self.free(i)
        for i in self.of(seq):
            self.seqs[i] = frozenset({seq})
        self.search_from(freed)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions of a sequence. A shared cell moves for all its sequences: it has one
        position only."""
        p0, p1 = span(p0, p1)
        if not delta or p0 == p1:
            return
        freed = []
        for i in self.of(seq, p0, p1):
            self.pos[i] += delta
            self.shift[i] += delta
            if self.pos[i] < 0:
                self.free(i)
                freed.append(i)
        self.head = freed[0] if freed else 0

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        p0, p1 = span(p0, p1)
        if d == 1 or p0 == p1:
            return
        for i in self.of(seq, p0, p1):
            divided = int(self.pos[i] / d)
            self.shift[i] += divided - self.pos[i]
            self.pos[i] = divided

    # --- finding room -------------------------------------------------------------------------

    def find(self, n: int, hidden: Callable[[int, int], bool]) -> list[int] | None:
        """Return the first n cells from the head on that can be taken; None if fewer can be taken.

        A cell can be taken if it is empty, or if no later token of its only sequence would see it:
        `hidden(position of the cell, position that looks)`.
        """
        start = 0 if self.head > len(self.live) + 2 * n else self.head
        last: dict[int, int] = {}

        def free(i: int) -> bool:
            if len(self.seqs[i]) != 1:
                return not self.seqs[i]
            (seq,) = self.seqs[i]
            if seq not in last:
                last[seq] = self.pos_max(seq)
            return hidden(self.pos[i], last[seq] + 1)

        found = [*islice(filter(free, range(start, self.size)), n)]
        found += islice(filter(free, range(start)), n - len(found))
        return found if len(found) == n else None

    def look(self) -> tuple[int, int, int, str, str]:
        """Return the number of cells up to the last in use, the number in use, the head, owners and
        positions.
        """
        used = self.used_cells()
        n = used[-1] + 1 if used else 0
        owners = "".join(owner(seqs) for seqs in self.seqs[:n]) or "-"
        positions = " ".join("." if p == EMPTY else str(p) for p in self.pos[:n]) or "-"
        return n, len(used), self.head, owners, positions


def owner(seqs: SeqSet) -> str:
    if not seqs:
        return "."
    return str(next(iter(seqs))) if len(seqs) == 1 else "M"
