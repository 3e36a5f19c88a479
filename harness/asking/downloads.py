"""Downloads with pip: the user's cache folder, its lock, and pip's output."""

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.engine.errors import EngineError

CACHE = "LOCKSTEP_CACHE"
PIP_SECONDS = 900.0
SMALL_TALK = ("[notice]", "[end of output]", "note: ", "hint: ", "\N{MULTIPLICATION SIGN}", "╰─>")


class NotDownloaded(EngineError):
    """Error: pip could not download a file. Its message is one sentence with the reason."""


def cache_folder() -> Path:
    """Return LOCKSTEP_CACHE, or `lockstep` in the user's cache folder."""
    if os.environ.get(CACHE):
        return Path(os.environ[CACHE])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lockstep"


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock on this file, so that only one process at a time does the work. The other
    processes wait until the work is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def download(package: str, version: str, sha256: str, folder: Path, *, source: bool) -> Path:
    """Download an archive of PyPI, source distribution or wheel. Raises NotDownloaded.

    `--require-hashes` makes pip refuse a file with another hash before it opens the file or runs
    its code.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check"),
        *("--no-input", "--retries", "1", "--progress-bar", "off", "--no-deps"),
        *("--no-binary" if source else "--only-binary", package, "--require-hashes"),
        *("--requirement", str(wanted), "--dest", str(folder)),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PIP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotDownloaded(f"pip did not finish within {PIP_SECONDS:.0f} s") from error
    name = f"{package.replace('-', '_')}-{version}"
    archives = list(folder.glob(f"{name}.tar.gz" if source else f"{name}-*.whl"))
    if done.returncode or len(archives) != 1:
        why = last_words(done.stderr.decode(errors="replace"))
        raise NotDownloaded(f"pip could not download {package} {version}: {why}")
    return archives[0]


def last_words(text: str, lines: int = 1) -> str:
    """Return the last lines of pip's error, without addresses."""
    said = [line.strip() for line in text.splitlines()]
    said = [line for line in said if line and not line.startswith(SMALL_TALK)]
    errors = [line for line in said if line.startswith("ERROR")]
    chosen = (errors or said)[-1:] if lines == 1 else said[-lines:]
    short = [re.sub(r"\w+://\S+", "(address)", line)[:200] for line in chosen]
    return "; ".join(short) or "pip printed no reason"
