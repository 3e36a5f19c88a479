"""Faults put into llama.cpp's own tensors: is each found, and at its node alone?

What follows a faulty node works on the faulty value, as it would with a real bug, and is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Philox

from engine.batch import Batch
from engine.gguf_file import GgufFile
from engine.ops.ggml.base import Build
from harness.records import Answered, Captured, Fault
from harness.runner import Session
from harness.shadow.judge import ShadowJudge
from harness.suites.base import no_answer
from harness.synth.draws import stream

KINDS = ("scale", "swap", "nudge", "stale")
ORDER_FREE = ("TOP_K",)  # a swap is no fault there
TRIES = 50  # of other nodes and kinds, if a fault changes no bit


@dataclass(frozen=True, kw_only=True)
class Place:
    step: int
    ubatch: int
    index: int
    op: str
    name: str
    layer: int | None

    @classmethod
    def of(cls, node: Any) -> "Place":
        """Of a node, or of a finding about one."""
        return cls(
            step=node.step,
            ubatch=node.ubatch,
            index=node.index,
            op=node.op,
            name=node.name,
            layer=node.layer,
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fault, and where the judge saw one."""

    number: int
    fault: Fault
    place: Place
    found: tuple[Place, ...]

    @property
    def located(self) -> bool:
        return self.found == (self.place,)


def trials(
    session: Session,
    file: GgufFile,
    build: Build,
    batches: Sequence[Batch],
    numbers: Sequence[int],
    seed: int,
) -> Iterator[Trial]:
    """Trials of these numbers: each is decided by the seed and its number alone."""
    places: list[Place] = []
    asked(session, batches, None, lambda node: places.append(Place.of(node)))
    for number in numbers:
        yield trial(session, file, build, batches, places, number, seed)


def trial(
    session: Session,
    file: GgufFile,
    build: Build,
    batches: Sequence[Batch],
    places: Sequence[Place],
    number: int,
    seed: int,
) -> Trial:
    bits = stream(seed, f"fault {number}")
    for _ in range(TRIES):
        place, fault = drawn(places, bits)
        judge = ShadowJudge(file, build)
        captured = asked(session, batches, fault, judge)
        if captured.faulted:
            found = tuple(Place.of(finding) for finding in judge.findings)
            return Trial(number=number, fault=fault, place=place, found=found)
    raise RuntimeError(f"trial {number}: none of {TRIES} faults changed a bit")


def drawn(places: Sequence[Place], bits: Philox) -> tuple[Place, Fault]:
    raw = [int(r >> np.uint64(33)) for r in bits.random_raw(3)]
    place = places[raw[0] % len(places)]
    kind = KINDS[raw[1] % len(KINDS)]
    if kind == "swap" and place.op in ORDER_FREE:
        kind = "nudge"
    return place, Fault(
        step=place.step, ubatch=place.ubatch, index=place.index, kind=kind, draw=raw[2]
    )


def asked(
    session: Session, batches: Sequence[Batch], fault: Fault | None, consume: Any
) -> Captured:
    outcome = session.stream("capture", consume, tuple(batches), fault)
    if not isinstance(outcome, Answered):
        raise no_answer(session.name, "capture", outcome)
    captured: Captured = outcome.value
    return captured
