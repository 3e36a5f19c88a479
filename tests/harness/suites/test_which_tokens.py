"""Tokens with differing logits are named, and a rare choice of experts is not a fault."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.enough_runs import by_chance
from lockstep.harness.context.runs import Run
from lockstep.harness.records import Evaluation, Mismatch, Request
from lockstep.harness.suites.logits import further_verdict
from lockstep.harness.suites.parts.pieces import two_choices
from lockstep.harness.suites.parts.which_tokens import (
    ids_that_differ,
    place_of,
    rows_that_differ,
    tokens_that_differ,
)
from tests.contexts import context_of
from tests.models import builtin

PROMPT, NEXT = Batch.of(range(1, 9)), Batch.of([5], start=8)
LAST_ALONE = replace(PROMPT, outputs=np.arange(8) == 7)


@pytest.mark.parametrize(
    ("batches", "rows", "said"),
    [
        ((PROMPT,), range(8), ""),  # no row agrees
        ((PROMPT,), (), ""),
        ((PROMPT,), (4, 6, 7), "; only 3 of 8 tokens, numbers 4 to 7"),
        ((PROMPT, NEXT), (3, 4), "; only 2 of 9 tokens, numbers 3 to 4, all of batch 0"),
        ((PROMPT, NEXT), (8,), "; only 1 of 9 tokens, number 8, all of batch 1"),
        (
            (PROMPT, NEXT, replace(NEXT)),
            (8, 9),
            "; only 2 of 10 tokens, numbers 8 to 9, none before batch 1",
        ),
        # rows are counted among outputs, and tokens in the run
        ((LAST_ALONE, NEXT), (1,), "; only 1 of 2 tokens, number 8, all of batch 1"),
    ],
)
def test_tokens_with_other_logits_are_named(
    batches: tuple[Batch, ...], rows: tuple[int, ...], said: str
) -> None:
    all_rows = sum(int(batch.outputs.sum()) for batch in batches)
    assert tokens_that_differ(batches, rows, all_rows) == said


def test_listed_rows_exceed_the_limit() -> None:
    right, wrong = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    wrong[1:, 2] = [0.1, 0.3, np.nan]
    assert rows_that_differ(right, wrong, np.array(0.2)) == [2, 3]
    each = np.full((4, 3), 0.2)
    each[2] = 0.4  # numbers that were rounded when they were written
    assert rows_that_differ(right, wrong, each) == [3]
    assert rows_that_differ(right, wrong[:3], np.array(0.2)) == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        # threads with the same number of rows each, and no thread for the last two
        ({0: (6, 7), 2: (6, 7)}, "; only logits of token ids 6 to 7"),
        ({0: (3, 5), 1: (4,)}, "; only logits of token ids 3 to 5"),  # in any of the rows
        ({1: (5,)}, "; only the logit of token id 5"),
        ({0: (3, 5)}, ""),  # scattered errors come from before the head
        ({0: range(8)}, ""),
        ({}, ""),
    ],
)
def test_wrong_range_of_the_vocabulary_is_named(
    wrong: dict[int, tuple[int, ...]], said: str
) -> None:
    right = np.ones((3, 8), np.float32)
    got = right.copy()
    for row, ids in wrong.items():
        got[row, list(ids)] = [0, np.nan, 2, 3, 4, 5, 6, 7][: len(ids)]
    assert ids_that_differ(right, got, np.array(0.5)) == said
    assert ids_that_differ(right, got[:2], np.array(0.5)) == ""


BESIDE = replace(NEXT, seq_ids=NEXT.seq_ids + 2, positions=NEXT.positions * 0)


@pytest.mark.parametrize(
    ("batches", "row", "all_rows", "said"),
    [
        ((PROMPT, NEXT), 8, 9, "position 8"),
        # rows are not positions if some tokens have no output
        ((LAST_ALONE, NEXT), 0, 2, "position 7"),
        ((PROMPT, BESIDE), 8, 9, "position 0 of sequence 2"),
        ((PROMPT, BESIDE), 1, 2, "row 1"),  # a pooled row belongs to a sequence
    ],
)
def test_place_of_the_worst_logit_is_named(
    batches: tuple[Batch, ...], row: int, all_rows: int, said: str
) -> None:
    off = Mismatch(kind="value", index=(row, 3))
    assert place_of(batches, off, all_rows) == said


@pytest.mark.parametrize(
    ("tokens", "margins", "said"),
    [
        (
            (365, 372),
            (0.0, 0.089),
            "372, and the oracle's is 365; their logits are 0.089 and 0 below",
        ),
        # llama.cpp's choice in single steps may differ from its choice in one batch
        ((1116, 1116), (0.043, 0.043), "1116 in both engines; its logit is 0.043 below"),
    ],
)
def test_tokens_at_text_differences_are_named_with_missing_parts(
    tokens: tuple[int, int], margins: tuple[float, float], said: str
) -> None:
    assert two_choices(*tokens, margins).startswith(f"{said} the oracle's largest logit")


TRUTH = np.zeros((4, 3), np.float32)
ALLOWED = 0.1


def with_rows(**rows: float) -> F32:
    """Return the true values with some rows replaced: r2=1.0 changes the third row."""
    found = TRUTH.copy()
    for name, value in rows.items():
        found[int(name[1:])] = value
    return found


def context(runs: Sequence[F32], n_expert: int = 8) -> Any:
    """Return the context of a model whose honest runs give these logits."""

    def unlucky(batches: Any, *, seed: int, runs: int) -> Iterator[F32]:
        return iter(every)

    every = runs
    key = SimpleNamespace(data=n_expert)
    return SimpleNamespace(
        file=SimpleNamespace(metadata={"a.expert_count": key}, tensors={}),
        facts=SimpleNamespace(architecture="a", is_small=True),
        honest=SimpleNamespace(unlucky=unlucky),
        progress=lambda text: None,
        seed=0,
    )


ONE, TWO, ZERO = with_rows(r1=2.0), with_rows(r2=1.0), with_rows(r0=3.0)
MOST = with_rows(r0=1.0, r1=1.0, r2=1.0)
FAR = [TRUTH, TWO, with_rows(r2=9.0)]


@pytest.mark.parametrize(
    ("runs", "engines", "explained"),
    [
        ([TRUTH, TWO], [with_rows(r2=1.05)], True),
        ([ONE, TWO], [with_rows(r1=2.0, r2=1.0)], True),  # two choices, which occurred in two runs
        ([TWO, ZERO], [TWO, ZERO], True),  # both engines made this choice
        ([TWO, ZERO], [TWO, with_rows(r0=4.0)], False),
        # no honest run gives such a row, however large its errors
        *((FAR, [with_rows(r2=wrong)], False) for wrong in (1.5, np.nan, np.inf)),
        ([TWO], [with_rows(r3=1.0)], False),  # honest runs never change this row
        ([MOST], [MOST], False),  # more than half of the rows differ, which is no rare choice
        ([TWO], [TRUTH], False),  # the engine is blamed without a wrong row
        ([TWO], [TWO, TRUTH], False),
    ],
)
def test_rows_found_in_few_honest_runs_accuse_no_engine(
    runs: Sequence[F32], engines: Sequence[F32], explained: bool
) -> None:
    assert by_chance(context(runs), (), TRUTH, engines, ALLOWED) is explained


def test_model_without_experts_has_no_choices() -> None:
    assert not by_chance(context([TWO], n_expert=0), (), TRUTH, [TWO], ALLOWED)


def test_oracle_that_is_wrong_in_a_usual_run_is_at_fault(tmp_path: Path) -> None:
    """Relative to the oracle's own logits, no row of the oracle would be wrong, so no honest run
    would have to explain a wrong row."""
    with context_of(builtin("moe", tmp_path)) as context:
        run = Run(words="again", batches=context.batches, usual=True, known=True)
        right = context.answer(
            context.subject,
            "evaluate",
            context.subject.ask("evaluate", Request(batches=run.batches)),
        )
        off = tuple(rows.copy() for rows in right.logits)
        off[0][3, 5] += np.abs(off[0]).max()
        verdict = further_verdict(context, run, Evaluation(logits=off, trace=None), right)
    assert (verdict.status, verdict.detail["at_fault"]) == ("diverged", "oracle")
