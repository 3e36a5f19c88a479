"""What pip gets for us is kept in the user's cache folder: where that is, its lock, pip's words."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = "LOCKSTEP_CACHE"
SMALL_TALK = ("[notice]", "[end of output]", "note: ", "hint: ", "\N{MULTIPLICATION SIGN}", "╰─>")


def cache_folder() -> Path:
    """LOCKSTEP_CACHE, or `lockstep` in the user's cache folder."""
    if os.environ.get(CACHE):
        return Path(os.environ[CACHE])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lockstep"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the others wait for it and then find its work done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def last_words(text: str, lines: int = 1) -> str:
    """The last lines of what pip says is wrong, without the addresses in them."""
    said = [line.strip() for line in text.splitlines()]
    said = [line for line in said if line and not line.startswith(SMALL_TALK)]
    errors = [line for line in said if line.startswith("ERROR")]
    chosen = (errors or said)[-1:] if lines == 1 else said[-lines:]
    short = [re.sub(r"\w+://\S+", "(address)", line)[:200] for line in chosen]
    return "; ".join(short) or "it said nothing"
