"""llama.cpp's own vocabularies, if they were fetched: tests that need one skip by its name."""

from pathlib import Path

import pytest

from golden import fetch


def vocabulary_file(name: str) -> Path:
    folder = fetch.vocabularies()
    if folder is None:
        pytest.skip(f"no ggml-vocab-{name}.gguf (lockstep golden fetch): it was not compared")
    return fetch.vocabulary(folder, name)


def known_cases(name: str) -> list[tuple[bytes, list[int]]]:
    """The texts of llama.cpp's own test and their ids, without special tokens."""
    cases = fetch.own_cases(vocabulary_file(name))
    assert len(cases) > 40
    return cases
