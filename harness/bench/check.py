"""Measures the time of each suite of a check, in seconds and in processor seconds of our
process."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from lockstep.harness.bench.base import Bench, BenchPlan, BenchRow, Progress
from lockstep.harness.bench.shadow import model_of
from lockstep.harness.blackbox.in_check import questions
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.records import StageText

NUMBERED = re.compile(r"\d|\.\w")  # matches a number or the name of a tensor
WALL, OWN = "seconds", "own"
START, END, WHOLE = "the start", "the end", "all of it"
SHORTEST = 1e-3  # seconds; a shorter phase has no rate


class CheckBench(Bench, name="check"):
    """Benchmark of `check`. A target is a GGUF file or a built-in model; a row is a phase of
    `check`."""

    unit = "checks"
    engines: ClassVar[dict[str, str]] = {WALL: "seconds", OWN: "of our processor"}
    threads = (1,)

    def targets(self) -> list[str]:
        return ["builtin:f32"]

    def run(self, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            for target in plan.targets or self.targets():
                path = model_of(target, Path(folder))
                clock = PhaseClock(say=partial(progress, path.stem))
                check(path, plan, clock)
                yield from clock.rows(path.stem)


def check(path: Path, asked: BenchPlan, clock: "PhaseClock") -> None:
    """Run all suites in this process, as `lockstep check` does without the report."""
    plan = Plan(
        case=path.name,
        model=path,
        subject_model=path,
        engine=asked.engine,
        settings=asked.settings,
        seed=asked.seed,
    )
    opened = open_plan(plan, clock.phase)
    opened.context.on_made_models = questions(plan)
    try:
        for _ in run_suites(opened.context, ()):
            pass
    finally:
        clock.begin(END)
        opened.close()
        clock.stop()


@dataclass(kw_only=True)
class PhaseClock:
    """Measures the time between messages. Messages that differ only in a number or in a tensor's
    name count as one phase."""

    say: Callable[[str], None]
    # (seconds, processor time of this process)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    suite: str = START
    now: str = ""
    since: tuple[float, float] = field(default_factory=lambda: clocks())

    def phase(self, text: str) -> None:
        """Begin a phase with the text that a Context reports."""
        self.say(text)
        self.stop()
        if isinstance(text, StageText) and text.suite:
            self.suite, self.now = text.suite, ""
            return
        self.now = " ".join(word for word in text.split() if not NUMBERED.search(word))

    def begin(self, stage: str) -> None:
        """Begin a stage other than a suite."""
        self.say(stage)
        self.stop()
        self.suite, self.now = stage, ""

    def stop(self) -> None:
        began, self.since = self.since, clocks()
        name = " | ".join(filter(None, (self.suite, self.now)))
        wall, own = self.times.get(name, (0.0, 0.0))
        self.times[name] = wall + self.since[0] - began[0], own + self.since[1] - began[1]

    def rows(self, model: str) -> Iterator[BenchRow]:
        """Yield a row for each phase, in the order of the run, and a row with the sum."""
        total = tuple(map(sum, zip(*self.times.values(), strict=True)))
        for name, spent in (*self.times.items(), (WHOLE, total)):
            rates = {what: 1 / max(s, SHORTEST) for what, s in zip((WALL, OWN), spent, strict=True)}
            yield BenchRow(target=f"{model}: {name}", rates={(k, 1): v for k, v in rates.items()})


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()
