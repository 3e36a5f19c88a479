"""A few tokens rule out most mistakes. On a large model, two processes share the work."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.catalogue.views import LOGITS
from lockstep.harness.diagnosis import diagnosis, race
from lockstep.harness.diagnosis.questions import RunQuestion
from lockstep.harness.processes import ahead
from tests.harness.diagnosis.test_diagnosis import CATALOGUE, HALVES, diagnosed, names, runs

NO_MASK = "mutant:mask-missing"
LATER = ("mutant:mask-of-second-batch", "mutant:mask-missing-in-second-batch")
OTHERS = (NO_MASK, "mutant:mask-not-itself", *LATER)


def test_other_mistakes_are_tested_only_on_the_first_differing_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation changes only tokens from the second on, so two tokens are needed."""
    asked: dict[str, list[int]] = {}
    compared = race.compare_answer

    def counted(engines: Any, cls: type[Any], one: Any, noise: float) -> Any:
        if isinstance(one.question, RunQuestion) and cls is not Reference:
            asked.setdefault(cls.name, []).append(sum(map(len, one.question.batches)))
        return compared(engines, cls, one, noise)

    monkeypatch.setattr(race, "compare_answer", counted)
    known = (HALVES, "mutant:silu-without-gate", "mutant:kv-head-modulo")
    found = runs(diagnosed(HALVES, tmp_path, view=LOGITS, known=known))
    assert (found.status, names(found)) == ("named", [HALVES])
    assert {name: sizes for name, sizes in asked.items() if name != HALVES} == {
        name: [2] for name in known[1:]
    }
    assert len(asked[HALVES]) > 5


@pytest.mark.parametrize("mistake", [NO_MASK, *LATER])
def test_effect_of_later_tokens_on_the_first_is_named(mistake: str, tmp_path: Path) -> None:
    """The first tokens are right without later tokens, so a shorter question does not show the
    effect."""
    found = runs(diagnosed(mistake, tmp_path, view=LOGITS, known=(*CATALOGUE, *OTHERS)))
    assert (found.status, names(found)) == ("named", [mistake])


@pytest.mark.parametrize("mistake", [HALVES, "mutant:missing-scale"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_forks_reach_the_same_diagnosis(
    mistake: str, is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tuple(name for name in CATALOGUE if is_known or name != mistake)
    alone = diagnosed(mistake, tmp_path, view=LOGITS, known=known)
    assert runs(alone).status == ("named" if is_known else "none")
    monkeypatch.setattr(diagnosis, "is_small", lambda file: False)
    monkeypatch.setattr(ahead, "may_fork", lambda: True)
    monkeypatch.setattr(ahead, "processors", lambda: 3)
    assert diagnosed(mistake, tmp_path, view=LOGITS, known=known) == alone
