"""Paths of the package: its folders are links in a checkout and real in an installation."""

import os
from pathlib import Path

import lockstep

ROOT = Path(__file__).resolve().parents[1]
LOCKSTEP = Path(lockstep.__file__).parent
EXAMPLES = LOCKSTEP / "harness" / "examples"
PYTHONPATH = os.pathsep.join([str(LOCKSTEP.parent), str(ROOT)])
FOLDERS = ("engine", "harness", "golden")


def package_files(pattern: str = "*.py") -> list[Path]:
    """Return the files of `lockstep`, including linked folders, which pathlib skips."""
    below = (path for folder in FOLDERS for path in (LOCKSTEP / folder).rglob(pattern))
    return sorted(path for path in [*LOCKSTEP.glob(pattern), *below] if path.is_file())
