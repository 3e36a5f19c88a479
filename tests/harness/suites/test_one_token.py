"""A vocabulary of one token: whatever an engine computes, it chooses and lists that."""

from pathlib import Path

import pytest

from lockstep.harness.exit_codes import exit_code
from tests.black_boxes import bisected, with_made_models
from tests.contexts import statuses
from tests.harness.check.test_check import plan_for
from tests.models import written
from tests.quiet_engines import made

SUITES = ("logprobs", "decode", "black-box")


@pytest.mark.parametrize("level", ["greedy", "logprobs"])
def test_nothing_is_agreed_where_there_is_one_token_to_choose(level: str, tmp_path: Path) -> None:
    """No engine could be wrong there."""
    model = written(tmp_path, n_layer=1, n_vocab=1, vocabulary=False)
    engine = made(f"one token: {level}", levels=(level,))
    found = with_made_models(plan_for(model, engine=engine, suites=SUITES))
    assert statuses(found) <= {"not-applicable", "not-compared"}
    assert exit_code(found) == 3
    assert any("nothing to choose from" in v.summary for v in found)
    assert bisected(model, tmp_path / "made", engine=engine).exit_code == 3


def test_logits_of_one_token_tell_a_wrong_engine_and_no_right_one(tmp_path: Path) -> None:
    """All rows are the same, so an engine that reads no token gives them as well."""
    model = written(tmp_path, n_layer=1, n_vocab=1, vocabulary=False)
    wrong = "mutant:gate-and-up-exchanged"
    for engine, status in {"fast": "not-compared", wrong: "diverged"}.items():
        found = with_made_models(plan_for(model, engine=engine, suites=("logits",)))
        assert status in statuses(found)
        assert not any("with another first token" in verdict.summary for verdict in found)
