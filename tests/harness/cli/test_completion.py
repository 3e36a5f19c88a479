"""Shell completion: in bash, its script completes commands, options and their values."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.harness.cli.formats import COMPLETIONS
from lockstep.harness.report.formats import FORMATS
from tests.places import PYTHONPATH

MAIN = "import sys; sys.argv[0] = 'lockstep'; from lockstep.harness.cli import main; main()"


def lockstep(folder: Path) -> dict[str, str]:
    """Return an environment in which `lockstep` is the command of this source tree."""
    program = folder / "lockstep"
    program.write_text(f"#!{sys.executable}\n{MAIN}\n")
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": PYTHONPATH}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lockstep", "che"], {"check"}),
        (["lockstep", "golden", "ex"], {"export"}),
        (["lockstep", "check", "--for"], {"--format"}),
        (["lockstep", "check", "--format", "j"], {"junit"}),
        (["lockstep", "golden", "export", "--level", "d"], {"dequant", "dot"}),
    ],
    # sorted, because the order of a set differs between processes, and xdist requires equal names
    ids=lambda words: " ".join(sorted(words) if isinstance(words, set) else words),
)
def test_completion_works_in_bash(tmp_path: Path, words: list[str], expected: set[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash: its completion was not tried")
    script = (
        'source <(_LOCKSTEP_COMPLETE=source_bash lockstep); COMP_WORDS=("$@"); '
        "COMP_CWORD=$(($# - 1)); _lockstep_completion lockstep; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        [bash, "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        env=lockstep(tmp_path),
    )
    assert set(done.stdout.split()) == expected, done.stderr


def test_completion_offers_every_format() -> None:
    assert tuple(FORMATS) == COMPLETIONS
