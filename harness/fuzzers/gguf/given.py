"""The user's files: a corpus to mutate, and files to test as they are."""

from pathlib import Path

from lockstep.harness.check.inputs import check_file
from lockstep.harness.fuzzers.base import FuzzPlan
from lockstep.harness.fuzzers.gguf.grammar import FileCase

CORPUS, GIVEN, GUIDED = "corpus", "given", "guided"  # targets whose files come from the user


def files_in(folder: Path | None) -> list[Path]:
    """Return the files of a corpus folder."""
    paths = folder.rglob("*") if folder else ()
    found = sorted(path for path in paths if path.suffix in (".gguf", ".bin"))
    return [check_file(path) for path in found if not path.is_dir()]


def given_cases(plan: FuzzPlan) -> list[FileCase]:
    """Return cases for the user's files, then for the user's bytes."""
    given = [(path.read_bytes(), ("--file", str(path))) for path in plan.files]
    given += [(raw, ("--hex", raw.hex())) for raw in plan.given]
    return [FileCase(i, raw, again=again) for i, (raw, again) in enumerate(given)]
