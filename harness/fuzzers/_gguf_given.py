"""Files that the user has: a corpus to mutate, and those to be looked at themselves."""

from pathlib import Path
from stat import S_ISREG

from harness.check import BadInput
from harness.fuzzers._gguf_grammar import Case
from harness.fuzzers.base import FuzzPlan

CORPUS, GIVEN, GUIDED = "corpus", "given", "guided"  # targets whose files come from the user


def files_in(folder: Path | None) -> list[Path]:
    """Of a corpus."""
    paths = folder.rglob("*") if folder else ()
    return sorted(path for path in paths if path.suffix in (".gguf", ".bin") and path.is_file())


def given_cases(plan: FuzzPlan) -> list[Case]:
    """Files, and then bytes."""
    given = [(path.read_bytes(), ("--file", str(path))) for path in plan.files]
    given += [(raw, ("--hex", raw.hex())) for raw in plan.given]
    return [Case(i, raw, again=again) for i, (raw, again) in enumerate(given)]


def check_readable(path: Path) -> None:
    """Raises BadInput. What is read to its end must have one."""
    try:
        if not S_ISREG(path.stat().st_mode):
            raise BadInput(f"{path}: expected a file, got a folder, device or pipe")
        path.open("rb").close()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
