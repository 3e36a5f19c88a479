"""Commands without llama.cpp: some work, and others say what is missing. The vectors do not need
llama.cpp."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models import builtin
from tests.places import PYTHONPATH

VECTORS = ("dequant/q4_0", "dot/q4_k", "ops/rope", "logits/f32", "tokens/f32", "files/alignment-3")
ABSENT = "raise ModuleNotFoundError(\"No module named 'llama_cpp'\", name='llama_cpp')\n"
Alone = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    """Return a function that runs a command, and all its workers, in an environment without
    llama_cpp."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "llama_cpp.py").write_text(ABSENT)
    paths = os.pathsep.join([str(hidden), PYTHONPATH])

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lockstep.harness.cli", *map(str, args)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
        )

    return run


def test_vectors_are_verified_and_an_engine_is_compared_with_them(alone: Alone) -> None:
    only = (f"--only={name}" for name in VECTORS)
    done = alone("golden", "verify", "--engine", "reference", *only, "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    agreed, _, asked = (
        done.stdout.partition(" comparisons agree")[0].rpartition("; ")[2].split()[:3]
    )
    assert agreed == asked
    assert int(agreed) >= len(VECTORS)


def test_vectors_suffice_to_find_a_wrong_engine(alone: Alone) -> None:
    wrong = ("--engine", "mutant:q4-0-nibbles-in-order", "--only", "dequant/q4_0")
    done = alone("golden", "verify", *wrong, "--quiet")
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("diverged"), "with --quiet nothing else says of what kind"


def test_text_is_tokenized_and_a_model_is_made(alone: Alone, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    made = alone("synth", "-o", tmp_path / "made.gguf")
    assert made.returncode == 0, made.stderr
    done = alone("tokenize", tmp_path / "made.gguf", "--file", tmp_path / "text")
    assert (done.returncode, done.stdout[:2]) == (0, "[1")


def test_vectors_are_exported(alone: Alone, tmp_path: Path) -> None:
    options = ("--level", "dot", "--as", "c", "--only", "q4_k")
    assert alone("golden", "export", tmp_path / "out", *options).returncode == 0
    assert (tmp_path / "out" / "runner.c").exists()


@pytest.mark.parametrize(
    "command",
    [("check",), ("golden", "regen")],
    ids=" ".join,
)
def test_command_that_needs_llama_cpp_says_so_in_one_line(
    alone: Alone, command: tuple[str, ...]
) -> None:
    done = alone(*command, "--quiet")
    assert done.returncode in (2, 3)
    assert done.stderr.count("\n") == 1, done.stderr
    assert "llama.cpp is not installed: `pip install gguf-lockstep`" in done.stderr


def test_check_against_another_oracle_names_what_it_cannot_compare(
    alone: Alone, tmp_path: Path
) -> None:
    model = builtin("f32", tmp_path)
    suites = ("--suite", "dequant", "--suite", "logits")
    done = alone("check", model, "--oracle", "reference", *suites, "--json", "--quiet")
    assert done.returncode == 3
    assert json.loads(done.stdout)["counts"] == {"agreed": 1, "not-compared": 1}
    assert "llama.cpp is not installed" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
