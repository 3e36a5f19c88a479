"""Known miscompilations: the smallest program still shows each of them."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.known import entries

SEEN = "12.2"  # version of GCC
NOT_PERMITTED = 2  # exit code of a program that lacks a permission


def features() -> set[str]:
    """Return this processor's features, as Linux names them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return {word for line in lines if line.startswith("flags") for word in line.split()}


def ending(program: str, flags: list[str], folder: Path) -> int:
    source, made = folder / "program.cpp", folder / "program"
    source.write_text(program)
    subprocess.run(["c++", *flags, str(source), "-o", str(made)], check=True, timeout=120)
    return subprocess.run([made], timeout=60, check=False).returncode


@pytest.mark.parametrize("entry", entries("compiled"), ids=lambda entry: entry["id"])
def test_miscompiled_program_dies_only_with_optimisation(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    if entry["needs"] not in features():
        pytest.skip(f"this processor has no {entry['needs']}: not compared")
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler: not compared")
    plain = ["-O0" if flag.startswith("-O") else flag for flag in entry["flags"]]
    ended = ending(entry["program"], plain, tmp_path)
    if ended == NOT_PERMITTED:
        pytest.skip(f"the system does not permit {entry['needs']}: not compared")
    assert ended == 0
    asked = ["c++", "-dumpfullversion"]
    version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    if not version.startswith(SEEN):
        pytest.skip(f"it was seen with GCC {SEEN}, but this is {version.strip() or 'another'}")
    assert ending(entry["program"], entry["flags"], tmp_path) == -signal.SIGSEGV
