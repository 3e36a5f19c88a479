"""An endless series of schedules. The seed, the kind of memory and a number determine each one.

A machine of ours runs each step, so that most batches are valid and continue a sequence at its
position. One schedule in ODD does things that are known to break llama.cpp. The other schedules
avoid them, because otherwise every schedule would end there. One schedule in TIGHT begins with a
full cache.
"""

from collections import Counter as Counted
from typing import Any

from lockstep.harness.fuzzers.batch.machines import CELLS, STATES, caches, machine_of
from lockstep.harness.fuzzers.batch.schedule import Row, ScheduleCase, Step
from lockstep.harness.fuzzers.tokens.texts import Counter
from lockstep.harness.synth.small import N_VOCAB

ODD = 24
TIGHT = 8  # one schedule in so many first fills its cache


def schedule(seed: int, number: int, kind: str) -> ScheduleCase:
    return Maker(
        Counter(seed, f"fuzz.batch.{kind}.{number}"), kind, odd=number % ODD == 0
    ).make_case()


class Maker:
    """Makes a schedule step by step. `history` shows which sequences have the same text so far."""

    def __init__(self, draw: Counter, kind: str, *, odd: bool) -> None:
        self.draw, self.kind, self.odd = draw, kind, odd
        below = draw.below
        n_seq, unified = 1 + below(4), below(2) == 0
        # each sequence needs room for one token in an ubatch, or llama.cpp makes a larger ubatch
        n_ubatch = 1 + below(3) if odd else n_seq + below((1, 4, 12, 40)[below(4)])
        self.tight = kind != "recurrent" and not odd and below(TIGHT) == 0
        # otherwise a cache takes hundreds of ubatches to fill
        n_ubatch += 16 + below(60) if self.tight else 0
        n_ctx = CELLS * ((1 + (below(8) == 0)) if unified else n_seq)
        self.shape = ScheduleCase(n_ctx, n_ubatch, n_seq, unified, ())
        self.steps: list[Step] = []
        self.machine = machine_of(kind, self.shape)
        self.history: dict[int, tuple[Any, ...]] = {}
        self.saved: list[tuple[int, dict[int, tuple[Any, ...]]]] = []
        self.unsettled = False  # True: positions moved or streams were copied after the last decode

    def make_case(self) -> ScheduleCase:
        if self.tight:
            self.crowd()
        for _ in range(3 + self.draw.below(8)):
            self.one()
        self.decode()
        return self.shape.with_steps(self.steps)

    def one(self) -> None:
        makers = (*[self.decode] * 11, self.invalid, *[self.remove] * 2, *[self.copy] * 2)
        makers += (self.keep, self.move, self.move, *[self.state] * 3, self.clear, self.fill)
        makers[self.draw.below(len(makers))]()

    def add(self, *step: Any) -> int:
        self.steps.append(step)
        code: int = self.machine.step(step)["code"]
        return code

    def seq(self) -> int:
        return self.draw.below(self.shape.n_seq)

    def last(self, seq: int) -> int:
        return self.machine.memory.pos_max(seq)

    # --- batches --------------------------------------------------------------------------------

    def decode(self) -> None:
        self.batch(self.fitting(self.rows(longest=7)))

    def fitting(self, rows: list[Row]) -> list[Row]:
        """Return the rows whose sequences still fit in nearly full streams. After a batch that does
        not fit, llama.cpp confuses heads, so most schedules would end there."""
        if not self.tight or self.shape.unified:
            return rows
        needed = Counted(row[2][0] for row in rows)
        return [row for row in rows if needed[row[2][0]] <= self.room(row[2][0])] or rows[:1]

    def fill(self) -> None:
        """Add many tokens, so that the cells run out sooner or later, or decode a usual batch."""
        if self.draw.below(2):
            self.batch(self.tokens(self.seq(), 60 + self.draw.below(160)))
        else:
            self.decode()

    def crowd(self) -> None:
        """Fill a cache to its last cells, with holes. Then add one token too many, and then as many
        as fit."""
        below = self.draw.below
        seqs = [self.seq()] if self.shape.unified else list(range(self.shape.n_seq))
        seq = seqs[0]
        self.batch(self.tokens(seq, 1 + below(9)))
        self.add("save", seq)
        self.saved.append((seq, dict(self.history)))
        for each in seqs:
            self.fill_up(each, left=below(4))
        for _ in range(below(4) if self.kind not in STATES else 0):
            p0 = below(self.last(seq))
            self.cut_out(seq, p0, p0 + 1 + below(4))
        self.batch(self.tokens(seq, self.room(seq) + 1))
        if self.kind not in STATES and below(2):
            self.cut_out(seq, below(self.last(seq)), -1)
        if self.room(seq):
            self.batch(self.tokens(seq, self.room(seq)))
        to = self.seq()
        self.add("load", to, 0)
        self.history[to] = self.saved[0][1][seq]

    def fill_up(self, seq: int, left: int) -> None:
        for _ in range(self.shape.n_ctx // CELLS):  # a batch holds at most CELLS tokens
            n = min(self.room(seq) - left, CELLS)
            if n > 0:
                self.batch(self.tokens(seq, n))

    def cut_out(self, seq: int, p0: int, p1: int) -> None:
        self.add("rm", seq, p0, p1)
        self.history[seq] = cut(self.history[seq], p0, p1, self.last(seq))

    def room(self, seq: int) -> int:
        cells = caches(self.machine.memory)[0].cells(seq)
        return cells.size - len(cells.live)

    def batch(self, rows: list[Row]) -> None:
        rows = rows[:CELLS]  # a batch may not be larger than the context
        if self.add("decode", tuple(rows)) == 0:
            self.unsettled = False
            for token, pos, seqs, _ in rows:
                for seq in seqs:
                    self.history[seq] = (*self.history.get(seq, ()), (token, pos))

    def rows(self, longest: int) -> list[Row]:
        chosen = [s for s in range(self.shape.n_seq) if self.draw.below(2)] or [self.seq()]
        shared = self.share_tokens(chosen)
        runs = [self.tokens(s, 1 + self.draw.below(longest), len(shared)) for s in chosen]
        style = self.draw.below(3)
        rows: list[Row] = []
        while any(runs):
            left = [run for run in runs if run]
            run = left[(0, len(rows) % len(left), self.draw.below(len(left)))[style]]
            rows.append(run.pop(0))
        return self.outputs([*shared, *rows])

    def tokens(self, seq: int, n: int, after: int = 0) -> list[Row]:
        start = self.last(seq) + 1 + after
        return [(1 + self.draw.below(N_VOCAB - 1), start + i, (seq,), False) for i in range(n)]

    def share_tokens(self, chosen: list[int]) -> list[Row]:
        """Return tokens that all chosen sequences share, if they have had the same tokens so far;
        otherwise an empty list."""
        same = len({self.history.get(s, ()) for s in chosen}) == 1
        spans = {(self.machine.memory.pos_min(s), self.last(s)) for s in chosen}
        possible = self.odd or (self.shape.unified and self.kind != "recurrent")
        if len(chosen) < 2 or not same or len(spans) > 1 or not possible or self.draw.below(2):
            return []
        rows = self.tokens(chosen[0], 1 + self.draw.below(3))
        return [(token, pos, tuple(chosen), out) for token, pos, _, out in rows]

    def outputs(self, rows: list[Row]) -> list[Row]:
        style = self.draw.below(4)
        asked = (True, False, True, False)[style]
        marked = [(t, p, s, asked or self.draw.below(3) == 0) for t, p, s, _ in rows]
        return [*marked[:-1], (*marked[-1][:3], style != 1)]

    def invalid(self) -> None:
        """Add a batch that breaks a rule."""
        rows = self.rows(longest=4)
        at = self.draw.below(len(rows))
        token, pos, seqs, out = rows[at]
        broken: tuple[list[Row], ...] = (
            [],
            [*rows[:at], (token, pos + 2, seqs, out), *rows[at + 1 :]],
            [*rows[:at], (N_VOCAB + self.draw.below(3), pos, seqs, out), *rows[at + 1 :]],
            [*rows[:at], (-1, pos, seqs, out), *rows[at + 1 :]],
            [*rows[:at], (token, pos, (self.shape.n_seq,), out), *rows[at + 1 :]],
            [*rows[:at], (token, pos, (-1,), out), *rows[at + 1 :]],
            rows[::-1],
            [*rows[:at], *rows[at + 1 :], rows[at]],
            [*rows[:at], (token, max(pos - 1, 0), seqs, out), *rows[at + 1 :]],
        )
        if self.odd:
            broken += ([*rows[:at], (token, -1, seqs, out), *rows[at + 1 :]],)
            broken += ([*rows[:at], (token, pos, (), out), *rows[at + 1 :]],)
        self.batch(broken[self.draw.below(len(broken))])

    # --- operations -----------------------------------------------------------------------------

    def remove(self) -> None:
        seq, below = self.seq(), self.draw.below
        last = self.last(seq)
        tail, middle = max(last - below(4), 0), below(max(last, 1))
        ranges = [(-1, -1), (tail, -1), (tail, -1), (last + 1, -1), (middle, middle)]
        if self.kind not in STATES or self.odd:
            ranges += [(middle, middle + 1 + below(3)), (-1, middle + 1)]
            seq = -1 if below(5) == 0 else seq
        p0, p1 = ranges[below(len(ranges))]
        self.add("rm", seq, p0, p1)
        for s in self.history if seq < 0 else [seq]:
            self.history[s] = cut(self.history.get(s, ()), p0, p1, self.last(s))

    def copy(self) -> None:
        source, to, below = self.seq(), self.seq(), self.draw.below
        # otherwise the two parts of the memory would diverge
        alone = self.kind == "hybrid" and not self.odd
        if self.last(to) >= 0 and (below(4) or alone) and source != to:
            self.remove_whole(to)
        p1 = -1
        if self.kind not in STATES and self.shape.unified and below(3) == 0:
            p1 = 1 + below(max(self.last(source), 1))
        fresh = self.last(to) < 0
        self.add("cp", source, to, -1, p1)
        self.unsettled |= not self.shape.unified
        if source != to:
            past = self.history.get(source, ())
            copied = tuple(one for one in past if p1 < 0 or one[1] < p1)
            whole = fresh or not self.shape.unified or self.kind in STATES
            self.history[to] = copied if whole else (*copied, ("over", len(self.steps)))

    def remove_whole(self, seq: int) -> None:
        self.add("rm", seq, -1, -1)
        self.history[seq] = ()

    def keep(self) -> None:
        if self.shape.unified or self.odd or self.kind == "recurrent":
            seq = self.seq()
            self.add("keep", seq)
            self.history = {seq: self.history.get(seq, ())}

    def move(self) -> None:
        """Move positions. One way is what users do with a full context: remove the oldest tokens
        and move the remaining tokens down."""
        seq, below = self.seq(), self.draw.below
        last = self.last(seq)
        if last < 0:
            return
        if self.odd and below(3) == 0:
            self.add("div", seq, -1, -1, 2 + below(2))
        elif below(2) and last > 4 and self.kind not in STATES:
            cut_to = 2 + below(min(last - 3, 3))
            self.add("rm", seq, 1, cut_to)
            self.add("add", seq, cut_to, -1, 1 - cut_to)
        else:
            back = -1 - below(3)
            if self.kind in STATES and not self.odd:
                back = max(back, -last)
            self.add("add", seq, -1, -1, 1 + below(4) if below(3) else back)
        self.unsettled = True
        for s in list(self.history):  # sequences that share cells move too
            self.history[s] = (*self.history[s], ("moved", len(self.steps), seq))

    def state(self) -> None:
        below = self.draw.below
        if self.unsettled and not self.odd:
            self.decode()
            if self.unsettled:
                return
        if not self.saved or below(3) == 0:
            seq = -1 if below(4) == 0 else self.seq()
            if seq >= 0 and self.last(seq) < 0 and not self.odd:
                return
            self.add("save", seq)
            self.saved.append((seq, dict(self.history)))
            for _ in range(below(3)):
                self.one()
        if self.unsettled and not self.odd:
            return
        k = below(len(self.saved))
        source, history = self.saved[k]
        to = -1 if source < 0 else self.seq()
        self.add("load", to, k)
        if to < 0:
            self.history = dict(history)
        else:
            self.history[to] = history.get(source, ())

    def clear(self) -> None:
        if self.draw.below(2) and (self.odd or not self.unsettled):
            self.add("clear")
            self.history = {}


def cut(past: tuple[Any, ...], p0: int, p1: int, last: int) -> tuple[Any, ...]:
    """Return the rest of a history after positions are removed. It is empty if the sequence is
    empty."""
    kept = tuple(
        one
        for one in past
        if one[0] in ("moved", "over") or not (p0 <= one[1] and (p1 < 0 or one[1] < p1))
    )
    return () if last < 0 else kept
