"""A broken vocabulary on the command line: one line that names the key, and exit code 2."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.llama import metadata, tensors
from tests.command_line import OURSELVES, Lockstep, assert_refused, lockstep

__all__ = ["lockstep"]

TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
SCORES, PRE, MODEL = "tokenizer.ggml.scores", "tokenizer.ggml.pre", "tokenizer.ggml.model"


def twice(texts: list[str]) -> list[str]:
    return [*texts[:-1], texts[5]]


# kind of vocabulary, the key, what becomes of its value (None: it is removed), what is said of it
BROKEN: dict[str, tuple[str, str, Any, str]] = {
    "a piece twice": ("llama", TOKENS, twice, f"{TOKENS} must differ"),
    "no merges": ("gpt2", MERGES, None, f"the key '{MERGES}' is missing"),
    "a score too few": ("llama", SCORES, lambda v: v[:-1], f"{SCORES} must have one entry"),
    "a score too many": ("llama", SCORES, lambda v: np.r_[v, v[:1]], f"{SCORES} must have one"),
    "an unknown model": ("llama", MODEL, lambda v: "llama2", f"{MODEL} must be one of"),
    "no model": ("llama", MODEL, None, MODEL),
    "an unknown pre": ("gpt2", PRE, lambda v: "gpt-3", f"{PRE} must be one of"),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": (*OURSELVES, "--quiet", "--suite", "tokens"),
    "tokenize": ("--text", "Once"),
    "run": ("--prompt", "Once", "-n", "1", "--quiet", "--engine", "reference"),
}


def broken(name: str, path: Path) -> Path:
    kind, key, change, _ = BROKEN[name]
    recipe = BUILTIN_VOCABULARIES[kind]
    keys: dict[str, Any] = dict(metadata(recipe))
    if change is None:
        del keys[key]
    else:
        type_name, value = keys[key]
        keys[key] = (type_name, change(value))
    write_gguf(path, keys, tensors(recipe))
    return path


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_broken_vocabulary_is_refused_by_key(
    command: str, name: str, lockstep: Lockstep, tmp_path: Path
) -> None:
    path = broken(name, tmp_path / "broken.gguf")
    results = ("--report", tmp_path / "results") if command == "check" else ()
    assert_refused(lockstep(command, path, *COMMANDS[command], *results), BROKEN[name][3])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_vocabularies_are_well_until_they_are_broken(
    kind: str, lockstep: Lockstep, tmp_path: Path
) -> None:
    recipe = BUILTIN_VOCABULARIES[kind]
    write_gguf(tmp_path / "good.gguf", dict(metadata(recipe)), tensors(recipe))
    ending = lockstep("tokenize", tmp_path / "good.gguf", "--text", "Once")
    assert ending.code == 0
    assert ending.out.startswith("[")
