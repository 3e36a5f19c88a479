"""Shrinks a schedule that shows a difference to a short and simple one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from lockstep.harness.fuzzers.batch.machines import machine_of
from lockstep.harness.fuzzers.batch.schedule import Row, ScheduleCase, Step
from lockstep.harness.fuzzers.shrink import shrink

Wrong = Callable[[ScheduleCase], bool]
TRIES = 500  # questions for one finding


def shrink_case(case: ScheduleCase, kind: str, wrong: Wrong, tries: int = TRIES) -> ScheduleCase:
    """Return the smallest schedule found for which `wrong` is true. It must be true for `case`."""
    return shrink(
        case,
        [partial(smaller, kind=kind)],
        lambda some: [wrong(each) for each in some],
        lambda each: each.size,
        budget=tries,
        at_once=1,
    )


def smaller(case: ScheduleCase, kind: str) -> Iterator[ScheduleCase]:
    """Yield simpler schedules, beginning with the largest changes. Yield each schedule also with
    renumbered positions."""
    for candidate in [*without_steps(case), *without_rows(case), *simpler(case)]:
        yield candidate
        repaired = going_on(candidate, kind)
        if repaired != candidate:
            yield repaired


def without_steps(case: ScheduleCase) -> Iterator[ScheduleCase]:
    n = len(case.steps)
    for size in sorted({max(n >> shift, 1) for shift in range(1, 5)}, reverse=True):
        for at in range(0, n, size):
            if n > size:
                yield from without(case, at, at + size)


def without(case: ScheduleCase, start: int, stop: int) -> Iterator[ScheduleCase]:
    """Yield the schedule without some steps, and without loads of saves that are then missing. The
    other saves are renumbered."""
    numbers: list[int | None] = []
    kept: list[Step] = []
    n_saved = 0
    for at, step in enumerate(case.steps):
        out = start <= at < stop
        if step[0] == "save":
            numbers.append(None if out else n_saved)
            n_saved += not out
        if out:
            continue
        if step[0] == "load":
            number = numbers[step[2]]
            if number is None:
                continue
            step = ("load", step[1], number)
        kept.append(step)
    yield case.with_steps(kept)


def without_rows(case: ScheduleCase) -> Iterator[ScheduleCase]:
    for at, step in enumerate(case.steps):
        if step[0] != "decode":
            continue
        rows = step[1]
        sizes = {max(len(rows) >> shift, 1) for shift in range(1, 8)} | {2}
        for size in sorted(sizes, reverse=True):
            for start in range(0, len(rows), size):
                left = rows[:start] + rows[start + size :]
                if left:
                    yield with_step(case, at, ("decode", left))
        for seq in range(case.n_seq):
            left = tuple(row for row in rows if seq not in row[2])
            if left and len(left) < len(rows):
                yield with_step(case, at, ("decode", left))


def simpler(case: ScheduleCase) -> Iterator[ScheduleCase]:
    yield from smaller_shapes(case)
    for at, step in enumerate(case.steps):
        simple = simpler_batches(step[1]) if step[0] == "decode" else simpler_numbers(step)
        for other in simple:
            yield with_step(case, at, other)


def smaller_shapes(case: ScheduleCase) -> Iterator[ScheduleCase]:
    used = [s for step in case.steps for s in sequences(step) if s < case.n_seq]
    n_seq = max(used, default=0) + 1
    yield replace(case, n_seq=n_seq, n_ctx=256 if case.unified else 256 * n_seq)
    for n in (1, 2, 4, case.n_seq, case.n_ubatch // 2):
        if 0 < n < case.n_ubatch:
            yield replace(case, n_ubatch=n)


def simpler_batches(rows: tuple[Row, ...]) -> Iterator[Step]:
    yield "decode", tuple(number_tokens(rows))
    for i, row in enumerate(rows):
        if row[3] and i + 1 < len(rows):
            yield "decode", (*rows[:i], (*row[:3], False), *rows[i + 1 :])
        if len(row[2]) > 1:
            yield "decode", (*rows[:i], (*row[:2], row[2][:1], row[3]), *rows[i + 1 :])


def simpler_numbers(step: Step) -> Iterator[Step]:
    for i, n in enumerate(step[1:], 1):
        for m in sorted({0, 1, -1, 2, n // 2} - {n}):
            # a load must match the state that was saved
            whole = step[0] == "save" and (m < 0) != (n < 0)
            if step[0] not in ("load", "div") and abs(m) <= abs(n) and not whole:
                yield *step[:i], m, *step[i + 1 :]


def number_tokens(rows: tuple[Row, ...]) -> Iterator[Row]:
    """Renumber valid tokens from 1 on, so that neighbours differ."""
    for i, row in enumerate(rows):
        legal = 0 < row[0] < 60
        yield (i % 59 + 1 if legal else row[0], *row[1:])


def sequences(step: Step) -> list[int]:
    if step[0] == "decode":
        return [seq for row in step[1] for seq in row[2] if seq >= 0]
    if step[0] == "clear":
        return []
    return [seq for seq in (step[1:3] if step[0] == "cp" else step[1:2]) if seq >= 0]


def with_step(case: ScheduleCase, at: int, step: Step) -> ScheduleCase:
    return case.with_steps((*case.steps[:at], step, *case.steps[at + 1 :]))


def going_on(case: ScheduleCase, kind: str) -> ScheduleCase:
    """Return the schedule with positions renumbered, so that every batch continues its
    sequences."""
    machine = machine_of(kind, case)
    steps: list[Step] = []
    for step in case.steps:
        if step[0] == "decode":
            step = ("decode", tuple(renumber_rows(step[1], machine.memory.pos_max, case.n_seq)))
        steps.append(step)
        machine.step(step)
    return case.with_steps(steps)


def renumber_rows(rows: tuple[Row, ...], last: Callable[[int], int], n_seq: int) -> Iterator[Row]:
    nexts: dict[int, int] = {}
    for token, pos, seqs, output in rows:
        if not seqs or not all(0 <= s < n_seq for s in seqs):
            yield token, pos, seqs, output
            continue
        at = nexts.get(seqs[0], last(seqs[0]) + 1)
        nexts.update(dict.fromkeys(seqs, at + 1))
        yield token, at, seqs, output
