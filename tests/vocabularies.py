"""llama.cpp's vocabularies for tests, from the cache. If they are missing, one process
fetches them; if it fails, tests are skipped with the reason."""

import fcntl
import os
from pathlib import Path

import pytest

from lockstep.golden import fetch

OFFLINE = "LOCKSTEP_OFFLINE"  # variable that keeps tests from fetching files


def folder(shared: Path) -> tuple[Path | None, str]:
    """Return the folder of all vocabularies, or None and the reason.

    `shared` is a folder that all processes of this test run share. The first process tries to fetch
    the vocabularies, and notes the result for the other processes.
    """
    found = fetch.vocabularies()
    if found is not None:
        return found, ""
    if os.environ.get(OFFLINE):
        return None, f"{OFFLINE} is set and the cache is empty; `lockstep golden fetch` fills it"
    told = shared / "vocabularies-not-fetched.txt"
    with (shared / "vocabularies.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            try:
                return fetch.fetch(), ""
            except fetch.VocabulariesNotFetched as error:
                told.write_text(str(error))
        return None, told.read_text()


def vocabulary_or_skip(name: str, shared: Path) -> Path:
    """Return the file of a vocabulary, or skip the test and name the vocabulary."""
    place, why = folder(shared)
    if place is None:
        pytest.skip(f"ggml-vocab-{name}.gguf was not compared: {why}")
    return fetch.vocabulary(place, name)


def vocabulary_file(name: str) -> Path:
    """Return a vocabulary from the cache, or skip the test and name the vocabulary."""
    place = fetch.vocabularies()
    if place is None:
        pytest.skip(f"ggml-vocab-{name}.gguf (lockstep golden fetch) was not compared")
    return fetch.vocabulary(place, name)
