"""Faults written into llama.cpp's own tensors. Each must be found, and only at its own node.

Nodes after a faulty node compute with the faulty value, as with a real bug, and are right.

An honest value lies within its bound of the truth, so a change of more than twice the bound always
leaves the bound. No such fault may be missed. Smaller faults are drawn again and counted, which
shows bounds that are too wide.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.node import Node
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import no_answer
from lockstep.harness.records import Answered, Captured, Crashed, Fault
from lockstep.harness.shadow.judge import SENSELESS, ShadowJudge
from lockstep.harness.shadow.nodes import capture
from lockstep.harness.synth.draws import stream

KINDS = ("scale", "swap", "nudge", "stale")
# relative changes; for some ops, the smallest are rounding errors
SIZES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
TRIES = 50  # other nodes to try if a change is no fault
VISIBLE = 2.0  # size of a change, in limits, from which it must be found

Again = Literal["same", "small", "fatal", "unjudged"]  # reason why a fault is drawn again


@dataclass(frozen=True, kw_only=True)
class FaultPlace:
    step: int
    ubatch: int
    index: int
    op: str
    name: str
    layer: int | None

    @classmethod
    def of(cls, node: Any) -> "FaultPlace":
        """Return the place of a node, or of a finding about a node."""
        return cls(
            step=node.step,
            ubatch=node.ubatch,
            index=node.index,
            op=node.op,
            name=node.name,
            layer=node.layer,
        )


@dataclass(frozen=True, kw_only=True)
class Injected:
    """An injected fault, and the places where the judge found a fault."""

    fault: Fault
    place: FaultPlace
    size: float  # size of the change, in limits
    seen: tuple[FaultPlace, ...]

    @property
    def found(self) -> bool:
        return self.place in self.seen

    @property
    def located(self) -> bool:
        return self.seen == (self.place,)


@dataclass(kw_only=True)
class FaultTrial:
    """One fault, and the earlier draws that yielded no fault."""

    number: int
    kind: str
    again: list[tuple[str, Again]] = field(default_factory=list)  # the op, and the reason
    injected: Injected | None = None  # None: no try gave a fault


@dataclass(kw_only=True)
class Trials:
    """The trials of faults in one model, all in one session."""

    session: Session
    batches: Sequence[Batch]
    judge: Callable[[], ShadowJudge]
    seed: int

    def run(self, numbers: Sequence[int]) -> Iterator[FaultTrial]:
        """Run the trials. The seed and the number determine each trial."""
        # by op, so that rare ops are drawn as often as others
        places: dict[str, list[FaultPlace]] = {}
        outcome = self.stream(lambda n: places.setdefault(n.op, []).append(FaultPlace.of(n)), None)
        if not isinstance(outcome, Answered):
            raise no_answer(self.session.name, "capture", outcome)
        for number in numbers:
            yield self.trial(places, number)

    def trial(self, places: dict[str, list[FaultPlace]], number: int) -> FaultTrial:
        done = FaultTrial(number=number, kind=KINDS[number % len(KINDS)])
        bits = stream(self.seed, f"fault {number}")
        while done.injected is None and len(done.again) < TRIES:
            place, fault = draw_fault(places, done.kind, bits)
            match self.inject(place, fault):
                case Injected() as injected:
                    done.injected = injected
                case why:
                    done.again.append((place.op, why))
        return done

    def inject(self, place: FaultPlace, fault: Fault) -> Injected | Again:
        judge = self.judge()
        struck: list[Node] = []

        def consume(node: Node) -> None:
            judge(node)
            if FaultPlace.of(node) == place:
                struck.append(node)

        outcome = self.stream(consume, fault)
        if isinstance(outcome, Crashed):  # for example, because an id is invalid
            return "fatal"
        if not isinstance(outcome, Answered):
            raise no_answer(self.session.name, "capture", outcome)
        captured: Captured = outcome.value
        if captured.honest is None:
            return "same"
        try:
            size = size_of(judge, struck[0], captured.honest)
        except (EngineError, *SENSELESS):
            return "unjudged"
        if size <= VISIBLE:
            return "small"
        seen = tuple(FaultPlace.of(finding) for finding in judge.findings)
        return Injected(fault=fault, place=place, size=size, seen=seen)

    def stream(self, consume: Any, fault: Fault | None) -> Any:
        return capture(self.session, consume, self.batches, fault)


def draw_fault(
    places: dict[str, list[FaultPlace]], kind: str, bits: Philox
) -> tuple[FaultPlace, Fault]:
    raw = [int(r >> np.uint64(33)) for r in bits.random_raw(4)]
    same = places[sorted(places)[raw[0] % len(places)]]
    place = same[raw[1] % len(same)]
    fault = Fault(
        step=place.step,
        ubatch=place.ubatch,
        index=place.index,
        kind=kind,
        draw=raw[2],
        size=SIZES[raw[3] % len(SIZES)],
    )
    return place, fault


def size_of(judge: ShadowJudge, struck: Node, honest: NDArray[Any]) -> float:
    """Return the largest change of compared values, as a multiple of the bound; infinity if the
    value must be exact."""
    expected, after = judge.expect(struck)
    _, before = judge.expect(replace(struck, value=honest))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        a, b = before.astype(np.float64), after.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        change = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
        share = np.where(same, 0.0, change / np.asarray(expected.allowed))
    return float(share.max(initial=0.0))
