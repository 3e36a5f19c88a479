"""Schedules that Hypothesis generates and shrinks, with our memory as the model. Two engines run
each finished schedule.

Steps that trigger known faults are skipped, so every difference is a failure.
`LOCKSTEP_EXAMPLES=2000` in the environment runs 2000 random schedules of each kind, instead of a
few fixed ones.
"""

import os
import shlex
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lockstep.harness.fuzzers.batch.causes import Watch
from lockstep.harness.fuzzers.batch.judge import Judge, other_size
from lockstep.harness.fuzzers.batch.machines import CELLS
from lockstep.harness.fuzzers.batch.schedule import Row, ScheduleCase

MOST_SEQ = 4
SEQ = st.integers(0, MOST_SEQ - 1)
ONE_OR_ALL = st.integers(-1, MOST_SEQ - 1)
BACK = st.integers(0, 9)  # distance from the last position
MORE = st.integers(0, 12) | st.just(60)  # tokens of an ubatch in addition to one for each sequence
Parts = list[tuple[list[int], int, str]]  # sequences, number of tokens, kind of outputs
PARTS = st.lists(
    st.tuples(
        st.lists(SEQ, min_size=1, max_size=3),
        st.integers(1, 9),
        st.sampled_from(("last", "all", "no")),
    ),
    min_size=1,
    max_size=5,
)


class Parted(AssertionError):
    """Error: two engines differ on a schedule."""

    def __init__(self, case: ScheduleCase, text: str, kind: str) -> None:
        command = ["lockstep", "fuzz", "batch", "--type", kind, "--schedule", case.text()]
        super().__init__(f"{text}\n  again: {shlex.join(command)}")
        self.case = case


class ScheduleMachine(RuleBasedStateMachine):
    """The rules of the machine. `machine_for` makes a machine for a kind of memory and two
    engines."""

    kind: ClassVar[str]
    judge: ClassVar[Judge]
    fills: ClassVar[bool]  # True: fills caches, which takes most of the time

    def __init__(self) -> None:
        super().__init__()
        self.shape = ScheduleCase(CELLS, 1, 1, True, ())
        self.steps: list[Any] = []
        self.watches: list[Watch] = []
        self.token = 0

    @initialize(n_seq=st.integers(1, MOST_SEQ), more=MORE, unified=st.booleans(), parts=PARTS)
    def begin(self, n_seq: int, more: int, unified: bool, parts: Parts) -> None:
        self.shape = ScheduleCase(
            CELLS * (1 if unified else n_seq), n_seq + more, n_seq, unified, ()
        )
        self.watches = self.fresh()
        self.take("decode", self.batch(parts))

    def fresh(self) -> list[Watch]:
        """Return our model of the memory for each tested ubatch size."""
        sizes = (self.shape.n_ubatch, other_size(self.shape))
        shape = self.shape
        return [
            Watch(ScheduleCase(shape.n_ctx, n, shape.n_seq, shape.unified, ()), self.kind)
            for n in sizes
        ]

    def take(self, *step: Any) -> None:
        """Take a step, unless it would trigger a known fault."""
        for watch in self.watches:
            watch.step(step)
        if not any(watch.causes for watch in self.watches):
            self.steps.append(step)
            return
        self.watches = self.fresh()
        for each in self.steps:
            for watch in self.watches:
                watch.step(each)

    @property
    def memory(self) -> Any:
        return self.watches[0].machine.memory

    @property
    def shares(self) -> bool:
        """Return True if a token of several sequences can be placed."""
        return self.shape.unified and self.kind != "recurrent"

    def seq(self, drawn: int) -> int:
        return drawn if drawn < 0 else drawn % self.shape.n_seq

    def last(self, seq: int) -> int:
        return max(self.memory.pos_max(s) for s in ([seq] if seq >= 0 else range(self.shape.n_seq)))

    # --- batches --------------------------------------------------------------------------------

    @rule(parts=PARTS)
    def decode(self, parts: Parts) -> None:
        self.take("decode", self.batch(parts))

    @precondition(lambda self: self.fills)
    @rule(seq=SEQ, n=st.integers(100, 250))
    def fill(self, seq: int, n: int) -> None:
        self.take("decode", self.batch([([seq], n, "last")]))

    @rule(parts=PARTS, gap=st.sampled_from((-1, 1, 2)))
    def decode_at_a_wrong_position(self, parts: Parts, gap: int) -> None:
        rows = self.batch(parts)
        token, pos, seqs, out = rows[-1]
        self.take("decode", (*rows[:-1], (token, max(pos + gap, 0), seqs, out)))

    def batch(self, parts: Parts) -> tuple[Row, ...]:
        """Return a batch that continues its sequences; tokens are shared only if the memory allows
        it."""
        rows: list[Row] = []
        ends = {s: self.last(s) for s in range(self.shape.n_seq)}
        for drawn, n, outputs in parts:
            first = self.seq(drawn[0])
            shared = [s for s in map(self.seq, drawn) if self.shares and ends[s] == ends[first]]
            seqs = tuple(sorted({first, *shared}))
            for i in range(n):
                self.token = self.token % 59 + 1
                asked = outputs == "all" or (outputs == "last" and i == n - 1)
                rows.append((self.token, ends[first] + 1 + i, seqs, asked))
            ends.update(dict.fromkeys(seqs, ends[first] + n))
        return tuple(rows[:CELLS])

    # --- operations -----------------------------------------------------------------------------

    @rule(seq=ONE_OR_ALL, back=BACK, n=st.integers(-1, 6))
    def rm(self, seq: int, back: int, n: int) -> None:
        seq = self.seq(seq)
        p0 = max(self.last(seq) - back, 0)
        self.take("rm", seq, p0, p0 + n if n >= 0 else -1)

    @rule(seq=ONE_OR_ALL)
    def rm_whole(self, seq: int) -> None:
        self.take("rm", self.seq(seq), -1, -1)

    @rule(source=SEQ, to=SEQ, back=st.none() | BACK)
    def cp(self, source: int, to: int, back: int | None) -> None:
        source, to = self.seq(source), self.seq(to)
        self.take("cp", source, to, -1, -1 if back is None else max(self.last(source) - back, 0))

    @rule(seq=SEQ)
    def keep(self, seq: int) -> None:
        self.take("keep", self.seq(seq))

    @rule(seq=SEQ, back=st.none() | BACK, delta=st.integers(-6, 6))
    def add(self, seq: int, back: int | None, delta: int) -> None:
        seq = self.seq(seq)
        self.take("add", seq, -1 if back is None else max(self.last(seq) - back, 0), -1, delta)

    @rule(seq=SEQ, d=st.integers(2, 3))
    def div(self, seq: int, d: int) -> None:
        self.take("div", self.seq(seq), -1, -1, d)

    @rule()
    def clear(self) -> None:
        self.take("clear")

    @rule(seq=ONE_OR_ALL)
    def save(self, seq: int) -> None:
        self.take("save", self.seq(seq))

    @precondition(lambda self: any(step[0] == "save" for step in self.steps))
    @rule(k=st.integers(0, 9), to=SEQ)
    def load(self, k: int, to: int) -> None:
        saves = [step[1] for step in self.steps if step[0] == "save"]
        k %= len(saves)
        self.take("load", -1 if saves[k] < 0 else self.seq(to), k)

    # --- invariants -----------------------------------------------------------------------------

    @invariant()
    def every_sequence_has_an_end_not_before_its_start(self) -> None:
        if self.watches:
            spans = [
                (self.memory.pos_min(s), self.memory.pos_max(s)) for s in range(self.shape.n_seq)
            ]
            assert all(first <= last for first, last in spans), spans

    def teardown(self) -> None:
        if not self.watches:
            return
        self.take("decode", self.batch([([s], 1, "all") for s in range(self.shape.n_seq)]))
        case = self.shape.with_steps(self.steps)
        found = self.judge(case)
        if found is not None:
            raise Parted(
                case, f"{found.who} step {found.step} ({found.name}): {found.text}", self.kind
            )


def machine_for(kind: str, judge: Judge, *, fills: bool) -> type[ScheduleMachine]:
    row = {"kind": kind, "judge": judge, "fills": fills}
    return type(f"Schedules of {kind}", (ScheduleMachine,), row)


def examples(few: int, steps: int = 16) -> settings:
    many = os.environ.get("LOCKSTEP_EXAMPLES")
    return settings(
        max_examples=int(many) if many else few,
        derandomize=not many,
        stateful_step_count=steps,
        phases=(Phase.generate, Phase.shrink),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
