"""`lockstep fuzz gguf` on the command line: requests and bad input."""

import json
from pathlib import Path

import pytest

from lockstep.harness.fuzzers.gguf.grammar import alone
from tests.command_line import Lockstep

# gguf-py is asked too, but llama.cpp is not needed
OURSELVES = ("--oracle", "reference", "--quiet")


@pytest.fixture
def fuzz(lockstep: Lockstep, tmp_path: Path) -> Lockstep:
    return lambda *args: lockstep("fuzz", "gguf", *args, "--report", tmp_path / "reports")


def test_users_file_is_shown_to_every_parser(fuzz: Lockstep, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(alone("bool-2"))
    code, out, err = fuzz("--file", path, *OURSELVES, "--json")
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert summary["counts"] == {"excused": 1, "agreed": 1}  # gguf-py accepts any byte as a bool


def test_bytes_may_be_given_as_hexadecimal_digits(fuzz: Lockstep) -> None:
    code, out, _ = fuzz("--hex", alone("every-type").hex(), *OURSELVES, "--json")
    assert (code, json.loads(out)["counts"]) == (0, {"agreed": 1})


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--hex", "4g"), "--hex need pairs of hexadecimal digits, got '4g'"),
        (("--family", "good"), "has no target 'good' (known: valid, broken, several"),
        (("--family", "corpus"), "the family corpus needs files"),
        (("--corpus", "nowhere"), "nowhere: no such folder"),
        (("--file", "nowhere.gguf"), "nowhere.gguf: no such file"),
        (("--resume", "nowhere"), "nowhere has no report.jsonl"),
    ],
)
def test_impossible_command_is_refused_in_one_line(
    fuzz: Lockstep, args: tuple[str, ...], says: str
) -> None:
    code, out, err = fuzz(*args, *OURSELVES)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
