"""Lockstep does not open a model path that is no longer a file. A pipe would block an engine beyond
any time limit."""

import os
from pathlib import Path

import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, Answered
from tests.command_line import in_a_process
from tests.models import builtin

LONG_SECONDS = 3600.0  # no test waits for it
REPLACES = """
import os, stat
from lockstep.harness.adapters.fast import FastEngine


class Mine(FastEngine):
    name = "mine"
    isolated = True

    def describe(self):
        found = super().describe()
        os.remove(self.model)
        os.mkfifo(self.model)
        return found
"""


@pytest.mark.parametrize("engine", ["llama.cpp", "gguf-py", "reference"])
def test_pipe_in_place_of_a_model_is_refused_at_once(engine: str, tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    with Runner(time_limit=LONG_SECONDS).open(engine, model, EXACT) as session:
        model.unlink()
        os.mkfifo(model)
        with pytest.raises(InvalidModel, match=r"f32\.gguf: a pipe; expected a regular file"):
            session.ask("metadata")


def test_pipe_that_replaces_an_open_model_is_refused_at_once(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    with Runner(time_limit=LONG_SECONDS).open("gguf-py", model, EXACT) as session:
        assert isinstance(session.ask("describe"), Answered)
        model.unlink()
        os.mkfifo(model)
        with pytest.raises(InvalidModel, match="a pipe"):
            session.ask("metadata")


def test_check_reports_once_that_its_model_became_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REPLACES)
    ended = in_a_process(
        *("check", str(builtin("f32", tmp_path)), "--adapter", str(tmp_path / "mine.py")),
        *("--timeout", str(LONG_SECONDS), "--report", str(tmp_path / "reports"), "--quiet"),
    )
    assert ended.code in (2, 3)
    said = ended.out + ended.err
    assert said.count("a pipe; expected a regular file") == 1, said
