"""Where two tokens are nearly alike an engine shows by its text alone that it is a little wrong."""

from pathlib import Path

import numpy as np
import pytest

from engine.registry import import_members
from harness.adapters.base import Adapter
from harness.check import open_plan
from harness.suites._close_calls import (
    ASKED,
    ROOM,
    allowed_in,
    beginnings_of,
    closest,
    margin_of,
    seeded_runs,
    texts_of,
)
from harness.suites.text import LONG
from tests.models import builtin
from tests.quiet_engines import made, wrong
from tests.test_check import plan_for, verdicts_of

import_members("harness.mutants")
LEVELS = {"decode": "greedy", "text": "generate"}


def quiet(level: str, mistake: str = "") -> str:
    """An engine that offers this level alone."""
    base = "quiet"
    if mistake:
        base = f"close: {mistake}"
        if base not in Adapter.family:
            wrong(base, Adapter.family[f"mutant:{mistake}"])
    name = f"{base} {level} alone"
    if name not in Adapter.family:
        made(name, base=Adapter.family[base], levels=(level,), text_only=level == "generate")
    return name


@pytest.mark.parametrize("suite", LEVELS)
@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_an_honest_engine_chooses_the_same(suite: str, name: str, tmp_path: Path) -> None:
    model = builtin(name, tmp_path)
    found = verdicts_of(plan_for(model, engine=quiet(LEVELS[suite]), suites=(suite,), n_steps=8))
    assert {v.status for v in found} <= {"agreed", "not-applicable"}
    assert "margins of" in found[-1].summary


def test_margins_are_small_and_beyond_the_noise(tmp_path: Path) -> None:
    opened = open_plan(plan_for(builtin("f32", tmp_path)), lambda _: None)
    try:
        context = opened.context
        close = closest(context, seeded_runs(context))
        assert len(close) == ASKED
        assert [one.margin for one in close] == sorted(one.margin for one in close)
        for one in close:
            row = one.logits[0]
            assert ROOM * allowed_in(context, row) < one.margin < 2e-3 * np.abs(row).max()
        ids, parts = beginnings_of(context, next(texts_of(context, LONG)))
        again = context.ask(context.oracle, "tokenize", [*parts.values()])
        assert again == [ids[:n] for n in parts]
        assert len(parts) > 20
    finally:
        opened.close()


@pytest.mark.parametrize("row", [[1.0], [1.0, np.nan], [np.inf, 0.0], [2.0, 2.0]])
def test_of_ties_and_of_no_numbers_there_is_no_margin(row: list[float]) -> None:
    assert margin_of(np.array(row, np.float32)) == 0
