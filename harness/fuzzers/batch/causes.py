"""Causes of known faults ([[batch]]), which our own machine observes while it runs a schedule.

A difference is excused only if the cause of a known fault occurs at the step of the difference or
before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.batch_rules import refusal
from lockstep.engine.memory.cells import Cells
from lockstep.engine.memory.hybrid import Hybrid
from lockstep.engine.memory.schedule import INVALID, NO_ROOM
from lockstep.engine.memory.ubatch import Entries, Entry, Ubatch
from lockstep.engine.memory.window import Window
from lockstep.harness.fuzzers.batch.judge import other_size
from lockstep.harness.fuzzers.batch.machines import caches, in_streams, machine_of, states
from lockstep.harness.fuzzers.batch.sbatch_schedules import causes_of_sbatch
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, Step
from lockstep.harness.synth.small import N_VOCAB

Answer = dict[str, Any]


def causes(case: ScheduleCase, kind: str) -> dict[str, int]:
    """Return the causes that occur in the schedule's run, or in its run with another ubatch size,
    each with its first step."""
    if case.sbatch:
        return causes_of_sbatch(case)
    found: dict[str, int] = {}
    for n_ubatch in (case.n_ubatch, other_size(case)):
        watch = Watch(replace(case, n_ubatch=n_ubatch), kind)
        for at, step in enumerate(case.steps):
            watch.step(step)
            found |= {name: min(at, found.get(name, at)) for name in watch.causes}
    return found


class Watch:
    """A machine of ours that notes the causes of known faults."""

    def __init__(self, shape: ScheduleCase, kind: str) -> None:
        self.kind = kind
        self.machine = machine_of(kind, shape)
        self.causes: set[str] = set()
        self.queued: set[int] = set()  # streams between which llama.cpp still has to copy values
        # True if the cache was cleared after the first of these copies was queued
        self.cleared = False

    def step(self, step: Step) -> Answer:
        return self.decode(step) if step[0] == "decode" else self.operation(step)

    # --- batches --------------------------------------------------------------------------------

    def decode(self, step: Step) -> Answer:
        memory = self.machine.memory
        batch = [Entry(t, p, frozenset(s), bool(out)) for t, p, s, out in step[1]]
        found = {name for name, holds in BEFORE_DECODE.items() if holds(memory, batch)}
        heads = [[cells.head for cells in cache.streams] for cache in caches(memory)]
        answer = self.machine.step(step)
        if answer["code"] != INVALID:
            self.queued, self.cleared = set(), False
        if is_crowded(batch, memory.seen.ubatches, self.machine.n_ubatch):
            found.add("crowded")
        if answer["code"] == NO_ROOM and any(map(heads_misplaced, caches(memory), heads)):
            found.add("heads")
        if any(cache.purges_ahead for cache in caches(memory)):
            found.add("purge")
        self.causes |= found
        return answer

    # --- operations -----------------------------------------------------------------------------

    def operation(self, step: Step) -> Answer:
        holds = BEFORE.get(step[0], {})
        self.causes |= {name for name, cause in holds.items() if cause(self, *step[1:])}
        self.note_queue(step)
        before = states(self.machine.memory)
        held = before is not None and step[0] == "load" and before.pos_max(step[1]) >= 0
        answer = self.machine.step(step)
        if held and not answer["code"]:
            self.causes.add("no room")
        if out_of_step(self.machine.memory):
            self.causes.add("out of step")
        return answer

    def note_queue(self, step: Step) -> None:
        memory = self.machine.memory
        if step[0] == "cp" and in_streams(memory) and step[1] != step[2]:
            self.queued |= {step[1], step[2]}
        elif step[0] == "clear" or (step[0] == "load" and step[1] < 0):
            self.cleared |= bool(self.queued)


def out_of_step(memory: Memory) -> bool:
    """Return True if the two parts of a hybrid memory hold different positions."""
    return isinstance(memory, Hybrid) and any(
        memory.pos_min(s) != max(part.pos_min(s) for part in memory.both)
        or memory.pos_max(s) != min(part.pos_max(s) for part in memory.both)
        for s in range(memory.n_seq)
    )


# --- before a batch -----------------------------------------------------------------------------


def broken_rule(memory: Memory, batch: Entries) -> str | None:
    return refusal(
        batch,
        n_vocab=N_VOCAB,
        n_seq_max=memory.n_seq,
        pos_min=memory.pos_min,
        pos_max=memory.pos_max,
    )


def nobody(memory: Memory, batch: Entries) -> bool:
    """Return True if a token of the batch has no sequence."""
    return broken_rule(memory, batch) == "no sequence"


def minus_one(memory: Memory, batch: Entries) -> bool:
    """Return True if a sequence begins at position -1."""
    rule = broken_rule(memory, batch)
    return rule == "negative position" and min(entry.pos for entry in batch) == -1


def twice(memory: Memory, batch: Entries) -> bool:
    """Return True if an accepted batch gives a sequence the same position twice."""
    places = [(s, entry.pos) for entry in batch for s in entry.seqs]
    return len(set(places)) < len(places) and broken_rule(memory, batch) is None


def is_parted(memory: Memory, batch: Entries) -> bool:
    """Return True if sequences that see different cells share a token. The cells may come from
    earlier tokens, or from a later token of the batch at the same position."""
    if broken_rule(memory, batch) is not None:
        return False
    pasts = {s: pasts_of(memory, s) for entry in batch for s in entry.seqs}
    for at, entry in enumerate(batch):
        beside = [(i, e.seqs) for i, e in enumerate(batch) if i > at and e.pos == entry.pos]
        again = {s: [("batch", i) for i, seqs in beside if s in seqs] for s in entry.seqs}
        if len({(*pasts[s], *again[s]) for s in entry.seqs}) > 1:
            return True
        for s in entry.seqs:
            pasts[s].append(("batch", at))
    return False


def pasts_of(memory: Memory, seq: int) -> list[tuple[Any, int]]:
    return [
        (number, i) for number, cache in enumerate(caches(memory)) for i in cache.cells(seq).of(seq)
    ]


BEFORE_DECODE: dict[str, Callable[[Memory, Entries], bool]] = {
    "nobody": nobody,
    "minus one": minus_one,
    "twice": twice,
    "parted": is_parted,
}

# --- after a batch ------------------------------------------------------------------------------


def is_crowded(batch: Entries, ubatches: Sequence[Ubatch], n_ubatch: int) -> bool:
    """Return True if an equal split makes an ubatch with one token for each of the sets that fit,
    while another set waits."""
    left = set(range(len(batch)))
    for ubatch in ubatches:
        waiting = {batch[at].seqs for at in left}
        if ubatch.equal and ubatch.n_seqs == n_ubatch < len(waiting):
            return True
        # llama.cpp splits the rest in another way
        left = left.difference(ubatch.order) or set(range(len(batch)))
    return False


def heads_misplaced(cache: Attention, before: Sequence[int]) -> bool:
    """Return True if the heads of streams end at wrong places when they are put back in the order
    of the ubatch."""
    heads, olds = list(before), []
    for placed in cache.tried:
        olds.append(heads[:])
        for stream, found in zip(placed.streams, placed.cells, strict=True):
            heads[stream] = found[-1] + 1
    for placed, old in zip(reversed(cache.tried), reversed(olds), strict=True):
        for at, stream in enumerate(placed.streams):
            heads[stream] = old[at]
    return heads != list(before)


# --- before an operation ------------------------------------------------------------------------


def is_kept(watch: Watch, seq: int) -> bool:
    """Return True if the memory has separate streams, and another sequence has cells."""
    memory = watch.machine.memory
    others = (memory.pos_max(s) >= 0 for s in range(memory.n_seq) if s != seq)
    return in_streams(memory) and any(others)


def is_divided(watch: Watch, seq: int, p0: int, p1: int, d: int) -> bool:
    """Return True if the division changes a position, so that its key must be rotated."""
    for cache in caches(watch.machine.memory):
        cells = cache.cells(seq).copy()
        cells.seq_div(seq, p0, p1, d)
        if cells.pos != cache.cells(seq).pos:
            return True
    return False


def is_grown(watch: Watch, seq: int, p0: int, p1: int, delta: int) -> bool:
    """Return True if the shift moves a key that YaRN has enlarged."""
    if watch.kind != "yarn":
        return False
    (cache,) = caches(watch.machine.memory)
    cells = cache.cells(seq).copy()
    cells.seq_add(seq, p0, p1, delta)
    return cells.pos != cache.cells(seq).pos


def part_of_a_stream(watch: Watch, source: int, to: int, p0: int, p1: int) -> bool:
    """Return True if only a part of a stream is copied into another stream."""
    memory = watch.machine.memory
    if source == to or not in_streams(memory):
        return False
    size = max(cells.size for cache in caches(memory) for cells in cache.streams)
    return any(0 < p < size - 1 for p in (p0, p1))


def is_unshifted(watch: Watch, seq: int) -> bool:
    """Return True if a cell that is saved has moved since the last batch."""
    return any(cells.shift[i] for cells, i in cells_saved(watch.machine.memory, seq))


def cells_saved(memory: Memory, seq: int) -> Iterator[tuple[Cells, int]]:
    for cache in caches(memory):
        for rows in cache.save(seq).streams:
            yield from ((cache.streams[stream], i) for _, _, (stream, i) in rows)


def is_uncopied(watch: Watch, seq: int) -> bool:
    """Return True if a state that is saved still waits for a copy."""
    return bool(watch.queued) if seq < 0 else seq in watch.queued


def nothing(watch: Watch, seq: int, k: int) -> bool:
    """Return True if a sequence is restored from a saved state without cells."""
    memory, saved = watch.machine.memory, watch.machine.saved[k]
    rows = saved[0] if isinstance(memory, Window | Hybrid) else saved
    return bool(caches(memory)) and seq >= 0 and not rows


def is_emptied(watch: Watch, seq: int, k: int) -> bool:
    """Return True if a state without cells is restored over a sequence that has cells."""
    return nothing(watch, seq, k) and watch.machine.memory.pos_max(seq) >= 0


def late_copy(watch: Watch, seq: int, k: int) -> bool:
    """Return True if a restored stream still waits for numbers to be copied to it."""
    return seq in watch.queued and not watch.cleared


def late_copy_after_clear(watch: Watch, seq: int, k: int) -> bool:
    """Return True if a restored stream still waits for a copy, and memory was cleared meanwhile.

    Restoring all sequences (`seq` below zero) clears memory itself.
    """
    return bool(watch.queued) if seq < 0 else seq in watch.queued and watch.cleared


def any_sequence(watch: Watch, seq: int, p0: int, p1: int) -> bool:
    """Return True if the step removes states without naming a sequence."""
    return states(watch.machine.memory) is not None and seq < 0


def before_the_last(watch: Watch, seq: int, p0: int, p1: int) -> bool:
    """Return True if a state is to forget positions before its last position."""
    part = states(watch.machine.memory)
    return part is not None and seq >= 0 and max(p0, 0) < p1 <= part.pos_max(seq)


def below_zero(watch: Watch, seq: int, p0: int, p1: int, delta: int) -> bool:
    """Return True if a state would move to a negative position."""
    part = states(watch.machine.memory)
    state = None if part is None else part.at(seq, p0, p1)
    return state is not None and state.pos + delta < 0


BEFORE: dict[str, dict[str, Callable[..., bool]]] = {
    "rm": {"any sequence": any_sequence, "before the last": before_the_last},
    "cp": {"part of a stream": part_of_a_stream},
    "keep": {"kept": is_kept},
    "add": {"below zero": below_zero, "grown": is_grown},
    "div": {"divided": is_divided},
    "save": {"unshifted": is_unshifted, "uncopied": is_uncopied},
    "load": {
        "nothing": nothing,
        "emptied": is_emptied,
        "late copy": late_copy,
        "late copy after clear": late_copy_after_clear,
    },
}
