"""The command line in tests: runs a command in this process or in a new one, and returns its exit
code."""

import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from lockstep.harness.cli import app
from tests.places import ROOT

OURSELVES = ("--oracle", "reference")  # needs no llama.cpp


class Ending(NamedTuple):
    code: int
    out: str
    err: str


Lockstep = Callable[..., Ending]


@pytest.fixture
def lockstep(capfd: pytest.CaptureFixture[str]) -> Lockstep:
    """Run a command in this process; an exception that escapes it fails the test."""

    def call(*args: object) -> Ending:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            app([str(arg) for arg in args])
        code = end.value.code
        assert isinstance(code, int | None)
        return Ending(code or 0, *capfd.readouterr())

    return call


def in_a_process(*args: str, code: str = "from lockstep.harness.cli import main; main()") -> Ending:
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return Ending(done.returncode, done.stdout, done.stderr)


def assert_refused(ending: Ending, *says: str) -> None:
    assert ending.code == 2
    assert ending.out == ""
    assert ending.err.startswith("lockstep: ")
    assert ending.err.count("\n") == 1
    assert "Traceback" not in ending.err
    for text in says:
        assert text in ending.err
