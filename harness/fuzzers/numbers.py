"""The next cases of a plan, a few at a time, until all are done or the time is over."""

import time
from collections.abc import Iterator

from lockstep.harness.fuzzers.base import FuzzPlan


class CaseNumbers:
    """The numbers of a plan's cases. The clock starts when this object is made. `done` is the first
    case that was not compared."""

    def __init__(self, plan: FuzzPlan, size: int = 1) -> None:
        self.plan, self.size = plan, size
        self.done, self.end = plan.start, plan.start + plan.cases
        self.begun = time.monotonic()

    def __iter__(self) -> Iterator[range]:
        while self.done < self.end:
            numbers = self.behind(self.done)
            yield numbers
            self.done = numbers.stop
            if self.late():
                return

    def behind(self, first: int) -> range:
        """Return the next cases from `first` on; empty at the end."""
        return range(first, min(first + self.size, self.end))

    def late(self) -> bool:
        return self.plan.seconds is not None and self.seconds() > self.plan.seconds

    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def pace(self, done: int, what: str, differ: int) -> str:
        """Describe the progress for the user. done: the first case that is still to come."""
        done -= self.plan.start
        rate = done / max(self.seconds(), 1e-3)
        return f"{done:,} of {self.plan.cases:,} {what}, {differ:,} differ, {rate:,.0f} a second"
