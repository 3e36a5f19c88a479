"""Text before a program's first message. The report quotes it, and it is not part of an answer."""

import shlex
import sys
from pathlib import Path

import pytest

from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import EXACT, Answered, Malformed, Outcome
from tests.command_line import in_a_process
from tests.models import builtin
from tests.places import EXAMPLES

EXAMPLE = EXAMPLES / "engine.py"
PRINTS = """
import runpy, sys
sys.stdout.write({banner!r})
sys.stdout.flush()
sys.argv = [{example!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def command(folder: Path, banner: str) -> list[str]:
    path = folder / "prints.py"
    path.write_text(PRINTS.format(banner=banner, example=str(EXAMPLE)))
    return [sys.executable, str(path)]


def described(folder: Path, banner: str) -> Outcome:
    words = command(folder, banner)
    model = builtin("f32", folder)
    with ProgramSession(words, model, EXACT, time_limit=30, memory_limit=None) as session:
        return session.ask("describe")


@pytest.mark.parametrize(
    ("banner", "named"),
    [
        ("", ""),
        ("Welcome\n", "'Welcome'"),
        ("Welcome ", "'Welcome'"),
        ("one\ntwo\n", "'two', the last of 2 lines"),
        ('{"level":"info"}\n', """'{"level":"info"}'"""),
        ('{"level":"info"} ', """'{"level":"info"}'"""),
        ('{"id":"7","request":{"id":1}}\n', """'{"id":"7","request":{"id":1}}'"""),
        ('{"request":{"id":1}} ', """'{"request":{"id":1}}'"""),
        ("{\n", "'{'"),
        ("42\n", "'42'"),
        ("\x1b[31m{} ", "'[31m{}'"),
    ],
)
def test_banner_is_named_and_is_not_an_answer(banner: str, named: str, tmp_path: Path) -> None:
    outcome = described(tmp_path, banner)
    assert isinstance(outcome, Answered), outcome
    assert outcome.value.version == "example 1"
    assert outcome.value.printed == named


@pytest.mark.parametrize("banner", ['{"answer":1}\n', '{"id":1}\n', "{'id': 1, 'answer': 1}\n"])
def test_wrong_message_is_not_a_banner(banner: str, tmp_path: Path) -> None:
    assert isinstance(described(tmp_path, banner), Malformed)


def test_check_names_banner_and_finds_no_divergence(tmp_path: Path) -> None:
    engine = shlex.join(command(tmp_path, "Welcome "))
    ended = in_a_process(
        *("check", str(builtin("f32", tmp_path)), "--engine", engine, "--suite", "logits"),
        *("--oracle", "reference", "--tokens", "4", "--report", str(tmp_path / "reports")),
    )
    assert ended.code == 0, ended.err
    assert "note: f32.gguf: prints.py printed 'Welcome' on standard output before" in ended.err
    (report,) = tmp_path.rglob("report.jsonl")
    assert '"printed": "\'Welcome\'"' in report.read_text()
