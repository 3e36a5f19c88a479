"""`lockstep protocol` and `lockstep smoke`: the first commands of a new user."""

import shlex
import sys
from pathlib import Path

import pytest

from lockstep.harness.protocol.session import command_of
from tests.command_line import Lockstep


def test_protocol_page_is_printed(lockstep: Lockstep) -> None:
    code, out, _ = lockstep("protocol")
    assert code == 0
    assert out.startswith("# Lockstep's engine protocol")


@pytest.mark.parametrize("command", [("synth",), ("acid", "write")], ids=" ".join)
def test_every_command_that_writes_a_model_can_be_quiet(
    lockstep: Lockstep, tmp_path: Path, command: tuple[str, ...]
) -> None:
    code, out, err = lockstep(*command, "-q", "-o", tmp_path / "m.gguf")
    assert (code, err) == (0, "")
    assert "sha256" in out


@pytest.mark.parametrize(
    ("language", "word"),
    [
        *(("python", "def "), ("javascript", "const "), ("c", "#include"), ("sampler", "def ")),
        *(("sampler-c", "#include"), ("sampler-javascript", "const ")),
    ],
)
def test_whole_engine_is_printed_in_each_language(
    lockstep: Lockstep, language: str, word: str
) -> None:
    code, out, _ = lockstep("protocol", "--example", language)
    assert code == 0
    assert word in out
    assert out.count("\n") <= 150


def test_printed_engine_offers_its_declared_levels(lockstep: Lockstep, tmp_path: Path) -> None:
    engine = tmp_path / "engine.py"
    engine.write_text(lockstep("protocol", "--example", "python")[1])
    code, out, _ = lockstep("smoke", "--engine", shlex.join([sys.executable, str(engine)]))
    assert code == 0
    assert "logits      ok" in out


@pytest.mark.parametrize("as_words", [True, False])
def test_command_proposed_by_smoke_runs_the_engine(
    lockstep: Lockstep, tmp_path: Path, as_words: bool
) -> None:
    engine = tmp_path / "my engine.py"
    engine.write_text(lockstep("protocol", "--example", "python")[1])
    words = [sys.executable, str(engine)]
    code, out, _ = lockstep("smoke", "--", *(words if as_words else [shlex.join(words)]))
    assert code == 0
    said = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert said[:4] == ["lockstep", "check", "MODEL", "--engine"]
    assert command_of(said[4]) == words


def test_empty_object_is_a_wrong_answer(lockstep: Lockstep) -> None:
    """The command must not wait minutes for another line."""
    program = "input(); print('{}', flush=True); input(); input()"
    code, out, _ = lockstep("smoke", "--start-seconds", 60, "--", sys.executable, "-c", program)
    assert code == 1
    assert 'expected "id":1, got None, as answer to start: {}' in out


def test_standard_error_of_a_program_is_shown_with_its_output(
    lockstep: Lockstep,
) -> None:
    program = "import os; input(); os.write(2, b'oops\\n'); os.write(1, b'hello\\n'); input()"
    code, out, _ = lockstep("smoke", "--start-seconds", 5, "--", sys.executable, "-c", program)
    assert code == 1
    assert "wrote 'hello'" in out
    assert "oops" in out


def test_answer_time_limit_also_applies_to_the_start(lockstep: Lockstep) -> None:
    program = "import os; input(); os.write(1, b'hello\\n'); input()"
    code, out, err = lockstep("smoke", "--timeout", 1, "--", sys.executable, "-c", program)
    assert code == 1
    assert "no answer within 1 s" in out
    assert "lockstep smoke" not in out
    assert "has 1 s to start (--timeout SECONDS)" in " ".join(err.split())


@pytest.mark.parametrize("word", ["adapter:mine.py", "mine.py", "dump:folder"])
def test_message_on_a_mistyped_program_mentions_check(lockstep: Lockstep, word: str) -> None:
    code, _, err = lockstep("smoke", word)
    assert code == 2
    assert "lockstep check MODEL --adapter FILE" in " ".join(err.split())
