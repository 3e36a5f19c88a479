"""Causes of known differences. A schedule that almost fulfils the conditions of a cause is not
excused."""

import json
from typing import Any

import pytest

from lockstep.harness.fuzzers.batch.causes import causes
from lockstep.harness.fuzzers.batch.judge import ScheduleDifference
from lockstep.harness.fuzzers.batch.known import KnownSchedule, entry_for, known_schedules
from lockstep.harness.fuzzers.batch.machines import KINDS
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, schedule_from
from lockstep.harness.fuzzers.batch.schedules import schedule

KNOWN = known_schedules()
UNIFIED = {"n_ctx": 256, "n_ubatch": 4, "n_seq": 2, "unified": True}
STREAMS = {"n_ctx": 512, "n_ubatch": 4, "n_seq": 2, "unified": False}


def text(seq: int, start: int = 0, n: int = 1) -> list[Any]:
    return ["decode", [[1, start, [seq], True, n]]]


def made(shape: dict[str, Any], *steps: Any, **changes: Any) -> ScheduleCase:
    return schedule_from(json.dumps({**shape, **changes, "steps": steps}))


COPY = ["cp", 0, 1, -1, -1]
FULL = [text(0, 0, 60), text(0, 60, 197)]
# cause -> kind of memory, and a schedule with the steps of the known case but without its cause
NEAR = {
    "crowded": ("attention", made(STREAMS, ["decode", [[1, 0, [0], True], [2, 0, [1], True]]])),
    "kept": ("attention", made(STREAMS, text(0), ["keep", 0])),
    "divided": ("attention", made(UNIFIED, text(0), ["div", 0, -1, -1, 2], text(0, 1))),
    "grown": ("yarn", made(UNIFIED, text(0), ["add", 0, 0, -1, 0], text(0, 1))),
    "emptied": ("attention", made(UNIFIED, ["save", 0], text(1), ["load", 0, 0])),
    "nothing": ("attention", made(UNIFIED, text(0), ["save", 0], ["load", 0, 0])),
    "unshifted": (
        "attention",
        made(UNIFIED, text(0), ["add", 0, 0, -1, 1], text(0, 2), ["save", 0], ["load", 1, 0]),
    ),
    "uncopied": (
        "attention",
        made(STREAMS, text(0), COPY, text(0, 1), ["save", 1], ["load", 1, 0]),
    ),
    "late copy": (
        "attention",
        made(STREAMS, text(0), ["save", 0], COPY, text(0, 1), ["load", 1, 0]),
    ),
    "late copy after clear": (
        "attention",
        made(STREAMS, text(0), ["save", 0], COPY, ["clear"], text(0), ["load", 1, 0]),
    ),
    "nobody": ("recurrent", made(UNIFIED, text(0))),
    "minus one": ("recurrent", made(UNIFIED, text(0, -2))),
    "any sequence": ("recurrent", made(UNIFIED, text(0), ["rm", 0, -1, -1])),
    "before the last": ("recurrent", made(UNIFIED, text(0, 0, 2), ["rm", 0, -1, 2])),
    "no room": (
        "hybrid",
        made(UNIFIED, text(0, 0, 130), ["save", 0], ["load", 1, 0], n_ubatch=60),
    ),
    "out of step": ("hybrid", made(UNIFIED, text(0), text(1), ["cp", 1, 0, -1, -1])),
    "below zero": ("recurrent", made(UNIFIED, text(0, 1), ["add", 0, 0, -1, -1])),
    "parted": (
        "attention",
        made(UNIFIED, ["decode", [[1, 0, [0, 1], True], [1, 1, [0, 1], True]]]),
    ),
    "purge": ("window", made(UNIFIED, text(0), text(1, 0, 5), text(0, 1), text(0, 2, 6))),
    "twice": ("attention", made(UNIFIED, text(0, 0, 2))),
    "heads": ("attention", made(STREAMS, *FULL, text(0, 60))),
    "unstable": (
        "recurrent",
        made(UNIFIED, ["decode", [[1, 0, [0], True]] * 16], sbatch="equal"),
    ),
    "left": (
        "recurrent",
        made(UNIFIED, ["decode", [[1, 0, [0, 1], True]]], text(2), n_seq=3, sbatch="equal"),
    ),
    "part of a stream": ("attention", made(UNIFIED, text(0, 0, 3), ["cp", 0, 1, -1, 2])),
}


def test_every_known_difference_has_a_near_miss_schedule() -> None:
    assert NEAR.keys() == {known.cause for known in KNOWN}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_fault_without_a_known_cause_is_not_excused(known: KnownSchedule) -> None:
    kind, case = NEAR[known.cause]
    found = ScheduleDifference(symptom=known.symptom, step=len(case.steps) - 1, name="", text="")
    assert known.cause in causes(known.schedule, kind)
    assert known.cause not in causes(case, kind)
    assert entry_for(KNOWN, (known.component,), kind, found, case) is None


def test_fault_before_the_step_of_its_cause_is_not_excused() -> None:
    case = made(STREAMS, text(1), text(1, 1), ["keep", 0])
    found = [ScheduleDifference(symptom="pos", step=step, name="", text="") for step in range(3)]
    told = [entry_for(KNOWN, ("llama.cpp",), "attention", one, case) for one in found]
    assert [one.id if one else None for one in told] == [
        None,
        None,
        "llama-cpp-seq-keep-other-streams",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_most_schedules_have_no_known_cause(kind: str) -> None:
    found = [causes(schedule(1, number, kind), kind) for number in range(1, 24)]
    assert sum(map(bool, found)) <= 4, found


@pytest.mark.parametrize(("second", "part"), [([0], True), ([0, 1], False), ([2], False)])
def test_sequences_that_differ_only_at_a_shared_token_have_diverged(
    second: list[int], part: bool
) -> None:
    """The token sees all cells of its own position, including those that come later in the
    batch."""
    case = made(UNIFIED, ["decode", [[1, 2, [0, 1], False], [2, 2, second, True]]], n_seq=3)
    assert ("parted" in causes(case, "attention")) is part


def test_attention_divergence_is_known_with_yarn_too() -> None:
    of_attention = [known for known in KNOWN if "attention" in known.kinds]
    assert of_attention
    for known in of_attention:
        case, last = known.schedule, len(known.schedule.steps) - 1
        found = ScheduleDifference(symptom=known.symptom, step=last, name="", text="")
        engines = (known.component,)
        expected = entry_for(KNOWN, engines, "attention", found, case)
        assert expected is not None
        yarn = entry_for(KNOWN, engines, "yarn", found, case)
        assert yarn == expected or (yarn is not None and "yarn" in yarn.kinds)
