"""`lockstep protocol` and `lockstep smoke`: how a stranger begins."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.harness.cli import app
from lockstep.harness.protocol.session import command_of

Lockstep = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lockstep(capfd: pytest.CaptureFixture[str]) -> Lockstep:
    def call(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            app(list(map(str, args)))
        out, err = capfd.readouterr()
        assert isinstance(end.value.code, int | None)
        return end.value.code or 0, out, " ".join(err.split())

    return call


def test_the_page_of_the_protocol_is_printed(lockstep: Lockstep) -> None:
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


def test_of_a_fuzzer_with_time_for_each_target_the_end_says_so(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    given = ("--cases", 64, "--engine", "reference", "--oracle", "fast", "-q", "--report", tmp_path)
    both = ("--type", "Q8_0", "--type", "Q4_0")
    _, out, _ = lockstep("fuzz", "quants", *both, "--seconds", 60, *given)
    assert "--seconds 60 was for each of 2 targets" in out
    _, out, _ = lockstep("fuzz", "quants", "--type", "Q8_0", "--seconds", 60, *given)
    assert "was for each" not in out


def test_the_help_says_which_example_runs_models_and_which_decodes_weights_alone(
    lockstep: Lockstep,
) -> None:
    _, out, _ = lockstep("protocol", "--help")
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", out).split())
    assert "whole engine" not in said
    assert "c decodes weights" in said


@pytest.mark.parametrize(
    ("language", "word"), [("python", "def "), ("javascript", "const "), ("c", "#include")]
)
def test_a_whole_engine_is_printed_in_each_language(
    lockstep: Lockstep, language: str, word: str
) -> None:
    code, out, _ = lockstep("protocol", "--example", language)
    assert code == 0
    assert word in out
    assert out.count("\n") <= 150


def test_the_engine_that_is_printed_offers_what_it_says(lockstep: Lockstep, tmp_path: Path) -> None:
    engine = tmp_path / "engine.py"
    engine.write_text(lockstep("protocol", "--example", "python")[1])
    code, out, _ = lockstep("smoke", "--engine", shlex.join([sys.executable, str(engine)]))
    assert code == 0
    assert "logits      ok" in out


@pytest.mark.parametrize("as_words", [True, False])
def test_what_smoke_says_to_go_on_with_is_an_engine(
    lockstep: Lockstep, tmp_path: Path, as_words: bool
) -> None:
    engine = tmp_path / "my engine.py"
    engine.write_text(lockstep("protocol", "--example", "python")[1])
    words = [sys.executable, str(engine)]
    code, out, _ = lockstep("smoke", "--", *(words if as_words else [shlex.join(words)]))
    assert code == 0
    said = shlex.split(out.splitlines()[-1].removeprefix("go on: "))
    assert said[:4] == ["lockstep", "check", "MODEL", "--engine"]
    assert command_of(said[4]) == words


def test_the_guide_says_how_other_kinds_are_asked(lockstep: Lockstep) -> None:
    assert "class Mine(Adapter)" in lockstep("protocol", "--guide")[1]
    assert lockstep("protocol", "--guide", "--example", "c")[0] == 2


def test_an_empty_object_is_an_answer_and_a_wrong_one(lockstep: Lockstep) -> None:
    """It is not waited behind it for another line, for minutes."""
    program = "input(); print('{}', flush=True); input(); input()"
    code, out, _ = lockstep("smoke", "--start-seconds", 60, "--", sys.executable, "-c", program)
    assert code == 1
    assert 'expected "id":1, got None, as answer to start: {}' in out


def test_what_a_program_says_on_standard_error_is_shown_beside_what_it_wrote(
    lockstep: Lockstep,
) -> None:
    program = "import os; input(); os.write(2, b'oops\\n'); os.write(1, b'hello\\n'); input()"
    code, out, _ = lockstep("smoke", "--start-seconds", 5, "--", sys.executable, "-c", program)
    assert code == 1
    assert "it wrote 'hello'" in out
    assert "oops" in out


def test_the_time_for_an_answer_is_also_that_for_the_start(lockstep: Lockstep) -> None:
    program = "import os; input(); os.write(1, b'hello\\n'); input()"
    code, out, err = lockstep("smoke", "--timeout", 1, "--", sys.executable, "-c", program)
    assert code == 1
    assert "no answer within 1 s" in out
    assert "lockstep smoke" not in out
    assert "has 1 s to start (--timeout SECONDS)" in err


@pytest.mark.parametrize("word", ["adapter:mine.py", "mine.py", "dump:folder"])
def test_what_is_no_program_is_sent_to_check(lockstep: Lockstep, word: str) -> None:
    code, _, err = lockstep("smoke", word)
    assert code == 2
    assert "lockstep check MODEL --adapter FILE" in err


def test_smoke_without_a_program_asks_for_one(lockstep: Lockstep) -> None:
    code, _, err = lockstep("smoke")
    assert code == 2
    assert "lockstep smoke -- COMMAND" in err


OF_ANOTHER_ARCHITECTURE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    start = {"protocol": 1, "engine": "e", "version": "1", "can": ["parse", "greedy"]}
    answer = {"answer": start if asked["ask"] == "start" else {"metadata": {}}}
    if asked["ask"] == "greedy":
        answer = {"unsupported": "architecture llama"}
    print(json.dumps({"id": asked["id"], **answer}), flush=True)
"""


def test_smoke_says_how_to_ask_an_engine_that_runs_no_llama(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    (tmp_path / "engine.py").write_text(OF_ANOTHER_ARCHITECTURE)
    code, out, _ = lockstep("smoke", "--", sys.executable, str(tmp_path / "engine.py"))
    assert code == 0
    assert "greedy      unsupported architecture llama" in out
    assert out.splitlines()[-1].startswith("it was given a tiny llama: --model FILE")
    ends = "raise SystemExit('what is general.architecture llama?')"
    code, out, _ = lockstep("smoke", "--", sys.executable, "-c", ends)
    assert code == 1
    assert out.splitlines()[-1].startswith("it was given a tiny llama: --model FILE")
