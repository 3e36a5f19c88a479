"""The interface of a benchmark. Engines take turns, so that other load on the machine affects all
engines alike."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lockstep.engine.registry import Registered
from lockstep.harness.check.check import REFERENCE, BadInput
from lockstep.harness.context.suite import no_answer
from lockstep.harness.records import EXACT, Outcome, Rejected, Settings

Progress = Callable[[str, str], None]  # arguments: what is measured, text


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """The plan of a benchmark. `targets` names members of the benchmark's list; empty means all.
    `seconds` is the time for each engine and round.

    `size` is the number of units per call. For weights the default is the number that our engine
    decodes at a time (engine.weights.CHUNK): the decoded floats fit into the processor's cache, as
    they do in a product. A much larger size would measure the speed of the memory, which a single
    thread of ours already saturates. Only the benchmark of a check uses `engine` and `settings`.
    """

    targets: tuple[str, ...] = ()
    size: int = 1 << 18
    seconds: float = 0.02
    rounds: int = 7
    seed: int = 0
    engine: str = REFERENCE
    settings: Settings = EXACT


def why_unmeasured(engine: str, question: str, outcome: Outcome) -> BadInput:
    """Return the error for an engine that does not answer. Without an answer nothing can be
    measured."""
    if isinstance(outcome, Rejected):
        return BadInput(f"{engine} refuses: {outcome.message}")
    return BadInput(no_answer(engine, question, outcome).summary)


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """Rates of one target: units per second, by engine and number of threads. An engine without a
    rate is absent."""

    target: str
    rates: dict[tuple[str, int], float]

    def ratio(self, a: tuple[str, int], b: tuple[str, int]) -> float | None:
        if a not in self.rates or b not in self.rates:
            return None
        return self.rates[a] / self.rates[b]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A ratio that the project promises, and the measured ratio."""

    text: str
    least: float
    found: float
    below: tuple[str, ...] = ()  # the targets that caused it

    @property
    def kept(self) -> bool:
        return self.found >= self.least


class Bench(Registered):
    unit: ClassVar[str]  # name of the unit that a rate counts
    # adapters, and their names in tables: first ours, then the one to compare with
    engines: ClassVar[dict[str, str]]
    threads: ClassVar[tuple[int, ...]] = (1, 2)

    def targets(self) -> list[str]:
        raise NotImplementedError

    def run(self, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
        raise NotImplementedError

    def promises(self, rows: Sequence[BenchRow]) -> list[Promise]:
        """Return the promises on speed, each with the ratio measured in these rows."""
        return []


def bench_named(name: str) -> Bench:
    return Bench.member(name)()


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
