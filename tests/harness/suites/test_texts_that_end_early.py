"""Engines that stop at a text of their own, or after few tokens, are compared as far as they go."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from tests.harness.suites.test_text_alone import TextAlone, verdicts
from tests.models import builtin
from tests.quiet_engines import made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_a_text_that_ends_early_is_compared_as_far_as_it_goes(folder: Path) -> None:
    made("text: of two tokens", TextAlone, write=lambda _, p: b"".join(p[:2]))
    short = verdicts(builtin("f32", folder), "text: of two tokens", "text")
    assert [v.status for v in short] == ["agreed", "not-compared", "not-compared", "agreed"]
    assert "its text ends after 2 of the 6 tokens" in short[1].summary
    assert "so do those behind" in short[2].summary


@pytest.mark.parametrize("n", [1, 2])
def test_one_that_ends_early_and_is_wrong_behind_another_prompt_diverges(
    n: int, folder: Path
) -> None:
    def generate(self: Any, prompt: bytes, _: int) -> bytes:
        read = prompt if prompt == b"Once upon a time" else prompt.swapcase()
        ids = Reference.greedy(self, self.tokenize([read])[0], n)
        return b"".join(self.tokenizer.piece(token, special=False) for token in ids)

    made(f"text: {n} tokens of another prompt", TextAlone, generate=generate)
    found = verdicts(builtin("f32", folder), f"text: {n} tokens of another prompt", "text")
    assert [v.status for v in found[:2]] == ["agreed", "not-compared"]
    assert "diverged" in {v.status for v in found}, found


def test_an_engine_that_ends_at_once_behind_one_prompt_is_not_accused(folder: Path) -> None:
    def generate(self: Any, prompt: bytes, n: int) -> bytes:
        usual = Reference.greedy(self, self.tokenize([prompt])[0], n)
        written = b"".join(self.tokenizer.piece(token, special=False) for token in usual)
        return b"" if prompt == b"Once upon a time" else written

    made("text: none behind one", TextAlone, generate=generate)
    found = verdicts(builtin("f32", folder), "text: none behind one", "text")
    assert exit_code(found) == 3
    assert [v.status for v in found] == ["not-compared", "agreed", "agreed"]


def test_a_text_without_its_last_token_is_not_compared_to_its_end(folder: Path) -> None:
    made("text: one token short", TextAlone, write=lambda _, p: b"".join([*p[:-1], b""]))
    made("text: one token more", TextAlone, write=lambda _, p: b"".join([*p, b"~~~"]))
    path = builtin("f32", folder)
    for engine, words in (("short", "its text ends after"), ("more", "its text goes on behind")):
        found = verdicts(path, f"text: one token {engine}", "text", prompt=b"The cat")
        assert exit_code(found) == 3
        assert words in " ".join(v.summary for v in found)
