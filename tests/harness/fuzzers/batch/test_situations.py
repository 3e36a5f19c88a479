"""Situations of caches: each is reported if and only if it is reached."""

import json
from collections import Counter
from typing import Any

import pytest

from lockstep.harness.fuzzers.batch.schedule import schedule_from
from lockstep.harness.fuzzers.batch.schedules import schedule
from lockstep.harness.fuzzers.batch.situations import SITUATIONS, find_situations

UNIFIED, STREAMS = (256, 2, True), (512, 2, False)


def text(seq: int, start: int, n: int) -> list[Any]:
    return ["decode", [[1, start, [seq], True, n]]]


def found(shape: tuple[int, int, bool], *steps: Any, kind: str = "attention") -> set[str]:
    n_ctx, n_seq, unified = shape
    plan = {"n_ctx": n_ctx, "n_ubatch": 99, "n_seq": n_seq, "unified": unified, "steps": steps}
    return find_situations(schedule_from(json.dumps(plan)), kind)


BATCH = text(0, 0, 200)
HOLE = [BATCH, ["rm", 0, 10, 14]]
SAVED = [text(0, 0, 9), ["save", 0]]
# situation -> schedules that reach it, and schedules that almost do
ROWS: dict[str, tuple[Any, ...]] = {
    "full": (UNIFIED, [BATCH, text(1, 0, 56)], [BATCH, text(1, 0, 55)]),
    "in turn": (
        STREAMS,
        [text(0, 0, 256), text(1, 0, 256)],
        [text(0, 0, 256), text(1, 0, 255)],
    ),
    "no room": (UNIFIED, [BATCH, text(1, 0, 58)], [BATCH, text(1, 0, 56)]),
    "one too many": (UNIFIED, [BATCH, text(1, 0, 57)], [BATCH, text(1, 0, 58)]),
    "retried": (
        UNIFIED,
        [BATCH, text(1, 0, 57), ["rm", 0, 199, -1], text(1, 0, 57)],
        [BATCH, ["rm", 0, 199, -1], text(1, 0, 57)],
    ),
    "hole": (UNIFIED, [*HOLE, text(1, 0, 4)], [BATCH, ["rm", 0, 196, -1], text(1, 0, 4)]),
    "scattered": (UNIFIED, [*HOLE, text(1, 0, 5)], [*HOLE, text(1, 0, 4)]),
    "restored": (UNIFIED, [*SAVED, text(1, 0, 1), ["load", 1, 0]], [*SAVED, ["load", 1, 0]]),
    "not restored": (
        UNIFIED,
        [*SAVED, text(0, 9, 239), ["load", 1, 0]],
        [*SAVED, text(0, 9, 238), ["load", 1, 0]],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_situation_is_reported_if_reached(name: str) -> None:
    shape, does, almost = ROWS[name]
    assert name in found(shape, *does)
    assert name not in found(shape, *almost)


def test_a_recurrent_memory_cannot_run_out_of_cells() -> None:
    assert found(UNIFIED, BATCH, kind="recurrent") == set()


@pytest.mark.parametrize("kind", ["attention", "window", "hybrid"])
def test_each_situation_occurs_among_149_schedules(kind: str) -> None:
    seen = Counter(
        name for n in range(1, 150) for name in find_situations(schedule(5, n, kind), kind)
    )
    wanted = SITUATIONS.keys() - (set() if kind == "window" else {"window"})
    assert {name for name in wanted if seen[name] >= 1} == wanted, seen
