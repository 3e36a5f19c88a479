"""An endless series of batches for llama.cpp's older llama_sbatch. The seed and a number determine
each one.

llama.cpp sorted these batches with std::sort, which does not define the order of equal elements.
With up to SORTED_STABLY elements it keeps their order. So only small batches have equal elements,
and no batch has more groups than that. The first cases of each kind are worked examples.
"""

from typing import TypeVar

from lockstep.harness.fuzzers.batch.schedule import Row, ScheduleCase, Step
from lockstep.harness.fuzzers.tokens.texts import Counter
from lockstep.harness.synth.small import N_VOCAB

SPLITS = {"attention": "simple", "recurrent": "equal", "pooled": "seq"}  # kind of context -> split
CELLS = 256
T = TypeVar("T")
SORTED_STABLY = 16  # up to so many elements, libstdc++ sorts by insertion, which is stable
MOST_SETS = 6


def run(n: int, seqs: tuple[int, ...] = (0,)) -> list[Row]:
    return [(1 + i % (N_VOCAB - 1), i, seqs, i == n - 1) for i in range(n)]


# two prompts that share the first two words; their ids after sorting are 0 3 1 4 2 5
PROMPTS: list[Row] = [
    (token, pos, seqs, pos == 2)
    for token, (pos, seqs) in enumerate(
        [(0, (1, 0)), (1, (1, 0)), (2, (0,)), (0, (1, 0)), (1, (1, 0)), (2, (1,))], start=1
    )
]
WORKED: dict[str, list[tuple[int, list[Row]]]] = {  # n_ubatch, and the batch
    "attention": [(4, run(13)), (32, run(75)), (32, run(73)), (32, PROMPTS)],
    "recurrent": [(32, PROMPTS), (4, run(13)), (32, run(75))],
    "pooled": [],
}


def sbatch_schedule(seed: int, number: int, kind: str) -> ScheduleCase:
    if number < len(WORKED[kind]):
        n_ubatch, rows = WORKED[kind][number]
        return shape(kind, n_ubatch, 2, [("decode", tuple(rows))])
    draw = Counter(seed, f"fuzz.sbatch.{kind}.{number}")
    n_seq, n_ubatch = 1 + draw.below(4), 1 + draw.below((3, 8, 20, 40)[draw.below(4)])
    return shape(kind, n_ubatch, n_seq, SbatchMaker(draw, kind, n_seq).steps())


def shape(kind: str, n_ubatch: int, n_seq: int, steps: list[Step]) -> ScheduleCase:
    return ScheduleCase(CELLS, n_ubatch, n_seq, True, tuple(steps), sbatch=SPLITS[kind])


def causes_of_sbatch(case: ScheduleCase) -> dict[str, int]:
    """Return the faults of llama_sbatch that the schedule shows, each with the first call that
    shows it. unstable: a batch too large for the stable sort repeats a place; left: a sequence
    continues without the other sequences that shared its token."""
    found: dict[str, int] = {}
    shared: set[tuple[int, ...]] = set()
    for at, step in enumerate(case.steps):
        rows = step[1] if step[0] == "decode" else ()
        if len({(row[1], row[2]) for row in rows}) < len(rows) > SORTED_STABLY:
            found.setdefault("unstable", at)
        shared |= {row[2] for row in rows if len(row[2]) > 1}
        if any(set(row[2]) & set(other) for row in rows for other in shared - {row[2]}):
            found.setdefault("left", at)
    return found


class SbatchMaker:
    """Makes batches that continue earlier ones."""

    def __init__(self, draw: Counter, kind: str, n_seq: int) -> None:
        self.draw, self.kind, self.n_seq = draw, kind, n_seq
        self.last = dict.fromkeys(range(n_seq), -1)

    def steps(self) -> list[Step]:
        return [("decode", tuple(self.batch())) for _ in range(1 + self.draw.below(3))]

    def batch(self) -> list[Row]:
        below = self.draw.below
        sets = {self.sequences() for _ in range(1 + below(MOST_SETS))}
        runs = [self.run(seqs, 1 + below((3, 9)[below(2)])) for seqs in sorted(sets)]
        rows = self.mix_runs(runs)[: N_VOCAB - 1]
        if len(rows) < SORTED_STABLY and below(3) == 0:  # one row twice
            at = below(len(rows))
            rows.insert(below(len(rows)), rows[at])
        rows = rows[: N_VOCAB - 1]
        first = below(N_VOCAB - 1)  # each token is different
        named = [(1 + (first + i) % (N_VOCAB - 1), *row[1:]) for i, row in enumerate(rows)]
        return self.outputs(named)

    def sequences(self) -> tuple[int, ...]:
        """Draw sequences in any order, because their order matters. Pooled batches must start with
        0 (`seq_id < n_tokens`)."""
        below = self.draw.below
        if self.kind == "pooled":
            rest = [s for s in range(1, self.n_seq) if below(3) == 0]
            return (0, *self.shuffle(rest))
        if below(3):
            return (below(self.n_seq),)
        return tuple(self.shuffle([s for s in range(self.n_seq) if below(2)])) or (0,)

    def run(self, seqs: tuple[int, ...], n: int) -> list[Row]:
        start = 1 + max(self.last[seq] for seq in seqs)
        self.last.update(dict.fromkeys(seqs, start + n - 1))
        return [(0, start + i, seqs, False) for i in range(n)]

    def mix_runs(self, runs: list[list[Row]]) -> list[Row]:
        """Return the rows of the runs, with one run after the other, alternating runs, or shuffled
        rows."""
        style = self.draw.below(3)
        if style == 2:
            return self.shuffle([row for run in runs for row in run])
        rows: list[Row] = []
        while any(runs):
            for run in filter(None, runs):
                rows += [run.pop(0)] if style else [run.pop(0) for _ in range(len(run))]
        return rows

    def outputs(self, rows: list[Row]) -> list[Row]:
        """Return the rows, in which all, some, only the last or no rows have outputs."""
        style = self.draw.below(4)
        asked = [style == 0 or (style == 1 and self.draw.below(3) == 0) for _ in rows]
        asked[-1] |= style == 2
        return [(*row[:3], out) for row, out in zip(rows, asked, strict=True)]

    def shuffle(self, items: list[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.draw.below(len(left))) for _ in range(len(left))]
