"""Lists of likely tokens: a mistake is named by the distance of its logits, not by the limit of
logits."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.diagnosis.asking import AskedQuestion
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.diagnosis.diagnosis import LEFT
from lockstep.harness.diagnosis.questions import Likeliest
from lockstep.harness.diagnosis.race import HeldAnswers, left_by
from lockstep.harness.judging.candidates import Candidate, Listed
from lockstep.harness.judging.compare import largest
from lockstep.harness.mutants.output import log_probabilities

QUESTION = Likeliest(words="the likeliest", prefix=(1,), k=20)
RIGHT = np.random.default_rng(3).standard_normal(400).astype(np.float32)
NOISE = 1e-3
SHARE = 1.6  # factor on the limit between two honest runs, so that the right engine is beyond it


def listed(row: F32, n: int = 20) -> Listed:
    order = np.argsort(-row)[:n].tolist()
    return Listed(candidates=tuple(Candidate(ids=(t,), value=float(row[t])) for t in order))


def compared(said: Listed, row: F32) -> Compared:
    answer: Any = SimpleNamespace(logits=(row[None],))
    return QUESTION.compare(said, answer, SimpleNamespace(), NOISE)  # type: ignore[arg-type]


def wrong_one() -> F32:
    """Return logits of an engine that exceeds the noise slightly, with another error for each
    logit."""
    shares = np.random.default_rng(7).uniform(-1, 1, RIGHT.size)
    off = SHARE * 2 * NOISE * largest(RIGHT) * shares
    return (RIGHT + off).astype(np.float32)


def left(said: Listed, own: Compared) -> float:
    right = compared(said, RIGHT)
    one = AskedQuestion(question=QUESTION, said=said)
    return left_by([own], HeldAnswers(every=(one,), right=(right,), noise=NOISE))


def test_log_probability_units_do_not_enlarge_the_limit_of_lists() -> None:
    said = listed(wrong_one())
    own = compared(said, log_probabilities(RIGHT[None])[0])
    assert not compared(said, RIGHT).same.all()
    assert own.same.all()  # larger logits have a larger limit
    assert left(said, own) > 0.99 > LEFT


def test_engine_that_gives_the_same_list_explains_the_whole_list() -> None:
    said = listed(wrong_one())
    assert left(said, compared(said, wrong_one())) < 1e-3


def test_list_without_a_token_is_explained_by_an_engine_without_it() -> None:
    without = RIGHT.copy()
    without[int(RIGHT.argmax())] = -np.inf
    said = listed(without)
    right, own = compared(said, RIGHT), compared(said, without)
    assert not right.same.all()
    assert own.same.all()
    assert left(said, own) == 0.0
