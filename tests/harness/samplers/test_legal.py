"""Allowed and forbidden differences between samplers, each judged on a small list."""

from typing import Any

import numpy as np
import pytest

from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import make_chain
from lockstep.harness.samplers.legal import Wrong, judge_stage
from tests.engine.samplers.test_samplers import HALVES, stage

NAN = float("nan")
TIED = [1.0, 2.0, 2.0, 0.0]


def judge(
    described: dict[str, Any],
    logits: Any,
    ids: list[int],
    after: Any = None,
    selected: int = -1,
    p: list[float] | None = None,
    draw: float = 0.5,
) -> Wrong | None:
    """Return the error of a list with these ids. Its logits are `after`, or by default the logits
    before the stage."""
    row = np.array(logits, np.float32)
    chain = make_chain([described], len(row))
    chain.give([draw])
    held = CandidateList(
        ids=np.array(ids, np.int32),
        logits=row[ids] if after is None else np.array(after, np.float32),
        p=np.full(len(ids), NAN, np.float32) if p is None else np.array(p, np.float32),
        selected=ids.index(selected) if selected in ids else -1,
    )
    found = judge_stage(chain.samplers[0], CandidateList.of_logits(row), held)
    return None if found is None else found.wrong


LEGAL: list[tuple[Any, ...]] = [
    (stage("top_k", k=1), TIED, [1]),
    (stage("top_k", k=1), TIED, [2]),
    (stage("top_k", k=1), TIED, [1, 2]),
    (stage("top_k", k=3), TIED, [0, 2, 1]),
    (stage("top_p", p=0.74), HALVES, [1, 0]),
    (stage("top_p", p=0.75), HALVES, [0, 1, 2]),
    (stage("top_p", p=0.75), HALVES, [0, 1]),
    (stage("top_p", p=0.9), HALVES, [0, 1, 2, 4]),
    (stage("min_p", p=0.25), HALVES, [2, 1, 0]),
    (stage("min_p", p=0.25), HALVES, [1, 0]),
    (stage("typical", p=0.2), HALVES, [1]),
    (stage("xtc", p=1.0, t=0.1), HALVES, [4, 2, 3]),
    (stage("temp", t=0.5), [1, 3], [0, 1], [2, 6.0000005]),
    (stage("temp", t=0.0), [3, 3], [0, 1], [-np.inf, 3]),
    (stage("temp", t=0.0), [2, 3], [1]),
    (stage("top_n_sigma", n=1.0), HALVES, [0, 1]),
    (stage("top_k", k=3), [-np.inf, 1, -np.inf, -np.inf], [1]),
    (stage("top_k", k=3), [-np.inf, 1, -np.inf, -np.inf], [1, 2, 3]),
    (stage("top_p", p=0.75), HALVES, [0, 1], None, -1, [0.5, 0.25]),
    (stage("top_p", p=0.75), HALVES, [0, 1], None, -1, [2 / 3, 1 / 3]),
    (stage("greedy"), TIED, [0, 1, 2, 3], None, 2),
    (stage("dist"), HALVES, [0, 1, 2, 3, 4], None, 0, None, 0.4),
    (stage("dist"), HALVES, [4, 1, 2, 3, 0], None, 2, None, 0.4),
    (stage("dist"), HALVES, [0, 1, 2, 3, 4], None, 1, None, 0.5),
]


@pytest.mark.parametrize("case", LEGAL, ids=str)
def test_right_sampler_is_not_accused(case: tuple[Any, ...]) -> None:
    assert judge(*case) is None


ILLEGAL: list[tuple[Wrong, tuple[Any, ...]]] = [
    (Wrong.DROPPED, (stage("top_k", k=2), TIED, [1])),
    (Wrong.KEPT, (stage("top_k", k=2), TIED, [1, 2, 0])),
    (Wrong.RANK, (stage("top_k", k=2), TIED, [1, 0])),
    (Wrong.DROPPED, (stage("top_n_sigma", n=1.0), HALVES, [0])),
    (Wrong.DROPPED, (stage("top_p", p=0.74), HALVES, [0])),
    (Wrong.KEPT, (stage("top_p", p=0.74), HALVES, [0, 1, 2])),
    (Wrong.RANK, (stage("top_p", p=0.74), HALVES, [0, 2])),
    (Wrong.KEPT, (stage("min_p", p=0.26), HALVES, [0, 1, 2])),
    (Wrong.DROPPED, (stage("min_p", p=0.24), HALVES, [0, 1])),
    (Wrong.RANK, (stage("typical", p=0.2), HALVES, [0])),
    (Wrong.DROPPED, (stage("xtc", p=1.0, t=0.1), HALVES, [3, 4])),
    (Wrong.KEPT, (stage("xtc", p=1.0, t=0.1), HALVES, [0, 1, 2, 3, 4])),
    (Wrong.LOGIT, (stage("temp", t=0.5), [1, 3], [0, 1], [2, 6.00001])),
    (Wrong.LOGIT, (stage("temp", t=0.0), [2, 3], [0, 1], [2, -np.inf])),
    (Wrong.LOGIT, (stage("top_k", k=2), TIED, [1, 2], [2, 2.0000002])),
    (Wrong.P, (stage("top_p", p=0.75), HALVES, [0, 1], None, -1, [0.5, 0.26])),
    (Wrong.CHOICE, (stage("greedy"), TIED, [0, 1, 2, 3], None, 0)),
    (Wrong.NO_CHOICE, (stage("greedy"), TIED, [0, 1, 2, 3])),
    (Wrong.CHOICE, (stage("dist"), HALVES, [0, 1, 2, 3, 4], None, 1, None, 0.4)),
]


@pytest.mark.parametrize(("wrong", "case"), ILLEGAL, ids=str)
def test_wrong_sampler_is_accused(wrong: Wrong, case: tuple[Any, ...]) -> None:
    assert judge(*case) is wrong
