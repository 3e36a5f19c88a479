"""llama.cpp's vocabularies for tests: from the cache, fetched once, or a reason why not."""

import fcntl
import os
from pathlib import Path

import pytest

from lockstep.golden import fetch

OFFLINE = "LOCKSTEP_OFFLINE"  # if set, tests fetch nothing


def folder(shared: Path) -> tuple[Path | None, str]:
    """Return the folder of all vocabularies, or None and why.

    `shared` is a folder of this test run that its processes have in common: the first of them tries
    to fetch, and notes the result for the others.
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
    """Return the file of one vocabulary, or skip the test by its name."""
    place, why = folder(shared)
    if place is None:
        pytest.skip(f"ggml-vocab-{name}.gguf was not compared: {why}")
    return fetch.vocabulary(place, name)


def vocabulary_file(name: str) -> Path:
    """Return one vocabulary from the cache, or skip by its name."""
    place = fetch.vocabularies()
    if place is None:
        pytest.skip(f"ggml-vocab-{name}.gguf (lockstep golden fetch) was not compared")
    return fetch.vocabulary(place, name)
