"""Situations of caches that the schedules of a campaign should reach."""

from itertools import pairwise

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.schedule import NO_ROOM
from lockstep.harness.fuzzers.batch.machines import caches, machine_of
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, Step

SITUATIONS = {
    "full": "a stream is filled to its last cell",
    "in turn": "streams become full one after the other",
    "no room": "a batch is refused for want of cells",
    "one too many": "a batch needs one cell more than there are",
    "retried": "a batch is refused, cells are freed, and a batch fits",
    "hole": "a batch goes into cells that were freed between others",
    "scattered": "an ubatch is longer than any hole and goes into several",
    "restored": "a sequence is restored where more cells are in use than when it was saved",
    "not restored": "a sequence is restored where it does not fit",
    "window": "a cell outside the window is taken, with all before it",
}


def find_situations(case: ScheduleCase, kind: str) -> set[str]:
    """Return the situations that our machine observes; none for a memory without cells."""
    tour = Tour(case, kind)
    for step in case.steps:
        tour.step(step)
    return tour.found


class Tour:
    def __init__(self, case: ScheduleCase, kind: str) -> None:
        self.machine = machine_of(kind, case)
        self.found: set[str] = set()
        self.full: set[int] = set()  # streams that have been full
        self.in_use: list[int] = []  # number of used cells at each save
        self.refused = self.freed = False

    def step(self, step: Step) -> None:
        every = caches(self.machine.memory)
        if not every:
            return
        cache, purged = every[0], sum(each.purged for each in every)
        before = [len(cells.live) for cells in cache.streams]
        tops = [max(cells.live, default=0) for cells in cache.streams]
        code = self.machine.step(step)["code"]
        if step[0] == "decode" and code == NO_ROOM:
            self.refusal(cache)
        elif step[0] == "decode" and code == 0:
            self.place_tokens(cache, tops)
            self.found |= {"window"} if sum(each.purged for each in every) > purged else set()
        elif step[0] == "save":
            self.in_use.append(sum(before))
        elif step[0] == "load":
            fuller = step[1] >= 0 and sum(before) > self.in_use[step[2]]
            self.found |= {"restored" if code else "not restored"} if fuller else set()
        self.freed |= self.refused and sum(map(len, (c.live for c in cache.streams))) < sum(before)

    def refusal(self, cache: Attention) -> None:
        self.refused = True
        self.found.add("no room")
        seen = self.machine.memory.seen.ubatches
        needed = sum(len(ubatch.order) for ubatch in seen)
        free = [cells.size - len(cells.live) for cells in cache.streams]
        if needed == free[0] + 1 and len(free) == 1:
            self.found.add("one too many")

    def place_tokens(self, cache: Attention, tops: list[int]) -> None:
        for placed in cache.tried:
            for stream, found in zip(placed.streams, placed.cells, strict=True):
                self.found |= {"hole"} if found[0] < tops[stream] else set()
                apart = any(b != a + 1 for a, b in pairwise(found))
                self.found |= {"scattered"} if apart else set()
        self.found |= {"retried"} if self.freed else set()
        full = {s for s, cells in enumerate(cache.streams) if len(cells.live) == cells.size}
        self.found |= {"full"} if full else set()
        self.found |= {"in turn"} if self.full and full - self.full else set()
        self.full |= full
