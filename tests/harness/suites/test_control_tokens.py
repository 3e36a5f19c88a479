"""Control tokens where they are likeliest: an engine may leave out a single one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import Request
from lockstep.harness.suites.parts.control_tokens import MOST, firsts_of
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import written


class NeverOne(Reference, name="control tokens: never one"):
    """One id stands for none."""

    never = -1

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < n:
            request = Request(batches=(Batch.of([*prompt, *ids]),))
            row = self.evaluate(request).logits[0][-1].copy()
            row[self.never] = -np.inf
            ids.append(int(row.argmax()))
        return ids


def test_every_one_that_is_likeliest_somewhere_is_asked_for(tmp_path: Path) -> None:
    """With this seed token 2 is the first of them, 0 the second, and 311 is the last id."""
    model = written(tmp_path, n_layer=1, n_vocab=312, seed=6)
    plan = plan_for(model, engine=NeverOne.name, suites=("decode",), n_tokens=32)
    found: list[int] = []
    for never in (0, 2, 311):
        NeverOne.never = never
        wrong = [v for v in verdicts_of(plan) if v.status == "diverged"]
        found += [int(v.detail["expected"]) for v in wrong]
    assert found == [0, 2, 311]


def test_of_each_the_first_place_where_no_other_is_near() -> None:
    rows = {3: [0, 0, 1.0], 4: [1.0, 0, 0], 5: [1.0, 0, 0.99], 7: [0, 1.0, 0], 8: [1.0, 0, 0]}
    logits = np.tile(np.array([0, 1.0, 0], np.float32), (9, 1))
    for at, row in rows.items():
        logits[at] = row
    assert firsts_of(logits, np.array([0, 2]), 0.1) == [3, 4]
    assert firsts_of(logits, np.array([2]), 1.5) == []
    assert MOST >= 2
