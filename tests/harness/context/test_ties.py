"""`lockstep run` reports the greedy choices that were ties."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.cli import app
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.context.ties import ties_between
from lockstep.harness.records import EXACT, Request
from lockstep.harness.runs.quick import generate
from lockstep.harness.suites.decode import PROMPT
from tests.contexts import check_engine
from tests.models import builtin, with_values, written

SMALL = {"seed": 1, "n_layer": 1, "n_embd": 16, "n_ff": 16}


def flat(folder: Path) -> Path:
    """Write a model whose logits are all zero, because its output matrix is zero."""
    path = written(folder, **SMALL)
    return with_values(path, path, "output.weight", np.zeros_like)


def test_tie_is_reported_with_the_text_and_in_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(flat(tmp_path)), "--prompt", "a", "-n", "2", "--engine", "reference"]
    with pytest.raises(SystemExit):
        app(command)
    assert (
        "note: token 0 is 0, and 1 is as likely: their logits are 0 apart" in capfd.readouterr().err
    )
    with pytest.raises(SystemExit):
        app([*command, "--json"])
    said = json.loads(capfd.readouterr().out)
    assert [tie["token"] for tie in said["ties"]] == [0, 1]
    assert said["ties_looked_for_in"] == 2


class LastOfATie(Reference, name="ties: the last"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        logits = self.evaluate(Request(batches=(Batch.of(prompt),))).logits[0][-1]
        last = int(np.flatnonzero(logits == logits.max())[-1])
        return [last, *super().greedy([*prompt, last], n - 1)]


@pytest.mark.parametrize("engine", ["reference", "ties: the last"])
def test_exact_tie_is_reported_and_accuses_no_engine(engine: str, tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    with LocalSession(Reference, model, EXACT) as session:
        ids = session.ask("tokenize", [PROMPT]).value[0]  # type: ignore[union-attr]
        chosen = session.ask("greedy", ids, 1).value[0]  # type: ignore[union-attr]
    # a copy with two tokens whose logits are always equal
    tied = with_values(
        model,
        tmp_path / "tied.gguf",
        "output.weight",
        lambda rows: np.concatenate([rows[:-1], rows[chosen : chosen + 1]]),
    )
    whole, greedy, in_turn, close = check_engine(tied, engine, "decode", n_steps=4)
    assert (in_turn.status, close.status) == ("agreed", "agreed")
    assert whole.status == "agreed"
    if engine == "reference":
        assert greedy.status == "agreed"
        return
    assert (greedy.status, greedy.detail["actual"]) == ("excused", 383)
    assert "an exact tie, where llama.cpp takes the first" in greedy.summary


def test_clear_choice_gets_no_remark(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    assert generate(model, "reference", "exact", "Once", 4, lambda _: None)["ties"] == []


def test_choice_closer_than_twice_the_engines_noise_is_a_tie() -> None:
    row = np.array([[0.0, 1.0, 1.5]], np.float32)
    off = row + np.array([[9.0, 0.25, 0.0]], np.float32)
    assert [t.other for t in ties_between([2], row, off)] == [1]
    assert ties_between([2], row, row + np.float32(0.2)) == []
