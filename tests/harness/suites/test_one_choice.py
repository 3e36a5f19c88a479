"""A model that says the same whatever it reads: tokens that agree show little, which is said."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import Verdict
from tests.black_boxes import copy_with
from tests.contexts import check_engine
from tests.models import builtin
from tests.quiet_engines import Quiet

LITTLE = "whatever is read, which shows little"


class GreedyAlone(Quiet, name="one choice: greedy alone"):
    levels = ("greedy",)


class EveryTokenIsOne(GreedyAlone, name="one choice: reads each token as token 1"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return Reference.greedy(self, [1] * len(prompt), n)


def said_of(path: Path, engine: str) -> list[Verdict]:
    return check_engine(path, engine, "decode", n_tokens=8)


def behind_beginnings(path: Path, engine: str) -> Verdict:
    return next(verdict for verdict in said_of(path, engine) if "beginnings" in verdict.detail)


def all_rows_the_first(raw: NDArray[np.uint8], format: type[WeightFormat]) -> None:
    rows = raw.reshape(384, -1)
    rows[:] = rows[0].copy()


def test_who_reads_no_prompt_is_seen_by_tokens_that_differ_and_else_it_is_said(
    tmp_path: Path,
) -> None:
    path = builtin("f32", tmp_path)
    assert any(verdict.status == "diverged" for verdict in said_of(path, EveryTokenIsOne.name))
    one = copy_with(path, tmp_path / "one.gguf", "token_embd.weight", all_rows_the_first)
    for engine in (EveryTokenIsOne.name, GreedyAlone.name):
        found = behind_beginnings(one, engine)
        assert (found.status, LITTLE in found.summary) == ("agreed", True), found.summary


def test_of_tokens_that_differ_nothing_is_said(tmp_path: Path) -> None:
    assert LITTLE not in behind_beginnings(builtin("f32", tmp_path), GreedyAlone.name).summary
