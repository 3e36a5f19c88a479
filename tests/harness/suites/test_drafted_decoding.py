"""Engines with speculative decoding. A draft must not change any token, and `decode` finds drafts
that change one."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.fast import FastEngine
from lockstep.harness.records import Request
from lockstep.harness.runs.run import builtin_model
from tests.plans import plan_of, verdicts_of

MOST_DRAFTED = 4


class Drafted(FastEngine, name="test:drafted"):
    """An engine whose draft is the tokens that followed the previous occurrence of the newest
    token."""

    accepted: ClassVar[int] = 0

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        ids = [*map(int, prompt)]
        context = list(ids)  # tokens in the cache
        while len(ids) < len(prompt) + n:
            draft = self.draft(ids)
            batch = Batch.of([*context, *draft])
            rows = self.evaluate(Request(batches=(batch,))).logits[0][len(context) - 1 :]
            kept = self.count_kept(draft, rows)
            type(self).accepted += kept
            new = [*draft[:kept], int(rows[kept].argmax())]
            ids += new
            context += self.cached(draft, new)
        return ids[len(prompt) : len(prompt) + n]

    def draft(self, ids: Sequence[int]) -> list[int]:
        earlier = [i for i, token in enumerate(ids[:-1]) if token == ids[-1]]
        return list(ids[earlier[-1] + 1 :][:MOST_DRAFTED]) if earlier else []

    def count_kept(self, draft: Sequence[int], rows: F32) -> int:
        same = [token == row.argmax() for token, row in zip(draft, rows, strict=False)]
        return same.index(False) if False in same else len(same)

    def cached(self, draft: Sequence[int], new: Sequence[int]) -> list[int]:
        return list(new)


class Unverified(Drafted, name="test:drafted-unverified"):
    def count_kept(self, draft: Sequence[int], rows: F32) -> int:
        return len(draft)


class OneTooMany(Drafted, name="test:drafted-one-too-many"):
    def count_kept(self, draft: Sequence[int], rows: F32) -> int:
        return min(len(draft), super().count_kept(draft, rows) + 1)


class AmongLikely(Drafted, name="test:drafted-among-likely"):
    def count_kept(self, draft: Sequence[int], rows: F32) -> int:
        ranks = [int((row > row[t]).sum()) for t, row in zip(draft, rows, strict=False)]
        return next((i for i, rank in enumerate(ranks) if rank > 9), len(draft))


class RejectedStay(Drafted, name="test:drafted-rejected-stay"):
    """An engine that keeps rejected draft tokens in its cache."""

    def cached(self, draft: Sequence[int], new: Sequence[int]) -> list[int]:
        return [*draft, new[-1]]


def statuses(engine: str, tmp_path: Path) -> set[str]:
    model = builtin_model("f32", tmp_path)
    return {v.status for v in verdicts_of(plan_of(model, engine, oracle="reference"), "decode")}


def test_engine_with_a_right_draft_agrees(tmp_path: Path) -> None:
    Drafted.accepted = 0
    assert statuses(Drafted.name, tmp_path) == {"agreed"}
    assert Drafted.accepted > 0


@pytest.mark.parametrize("engine", [Unverified, OneTooMany, AmongLikely, RejectedStay])
def test_engine_with_a_wrong_draft_is_found(engine: type[Drafted], tmp_path: Path) -> None:
    assert "diverged" in statuses(engine.name, tmp_path)
