"""`lockstep run` shows text from any engine, by means of the levels that the engine offers."""

from pathlib import Path

import pytest

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import BadInput
from lockstep.harness.records import Evaluation, Request
from lockstep.harness.runs.quick import generate
from tests.models import builtin


class LogitsAlone(Adapter, name="quick: logits alone"):
    def evaluate(self, request: Request) -> Evaluation:
        return Reference(self.model, self.settings).evaluate(request)


class Nothing(Adapter, name="quick: nothing"):
    """An engine that offers nothing from which text can be built."""


def said_by(engine: str, path: Path) -> dict[str, object]:
    return generate(path, engine, "exact", "Once", 5, lambda _: None)


def test_logits_are_sufficient_for_text(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    right, found = said_by("reference", path), said_by(LogitsAlone.name, path)
    assert (found["ids"], found["text"]) == (right["ids"], right["text"])
    assert not right["why"]
    assert "our tokenizer made the prompt's ids" in str(found["why"])
    assert "so the largest logit decides" in str(found["why"])


def test_engine_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not generate"):
        said_by(Nothing.name, builtin("f32", tmp_path))
