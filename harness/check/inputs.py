"""Files and texts that a user names: to read, to write, or from a pipe."""

import sys
from pathlib import Path

STANDARD_INPUT = Path("-")
MAGIC = b"GGUF"  # the first bytes of every model
# bytes; a text may become as many ids as it has bytes, and an id needs ten times as much memory
LARGEST_TEXT = 64 << 20


def read_file(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file. Raises BadInput if it is another kind, unreadable, or larger than the
    limit."""
    from lockstep.engine.gguf.regular_file import read_regular
    from lockstep.harness.check.check import BadInput

    try:
        return read_regular(path, limit)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error


def check_file(path: Path, otherwise: str = "") -> Path:
    """Return the path if a regular file is there. Raises BadInput if not; its message ends with
    `otherwise`."""
    from lockstep.engine.gguf.regular_file import check_regular
    from lockstep.harness.check.check import BadInput

    try:
        check_regular(path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}{otherwise}") from error
    return path


def check_folder_of(path: Path) -> None:
    """Check that the folder of a new file exists. Raises BadInput if it does not."""
    from lockstep.harness.check.check import BadInput

    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path}: cannot be written: {path.absolute().parent} is not a folder")


def check_is_no_model(path: Path) -> None:
    """Refuse to overwrite a model. Raises BadInput if the path is a model."""
    from lockstep.harness.check.check import BadInput

    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                raise BadInput(f"{path} is a model, and would be overwritten")


def check_replaced(path: Path, *inputs: Path) -> None:
    """Check the path of a file that is about to be overwritten with text. Raises BadInput for a
    model, an input, a device, or a place where no file can be written."""
    from lockstep.harness.check.check import BadInput

    check_folder_of(path)
    if path.exists():
        check_file(path)
    check_is_no_model(path)
    if any(path.exists() and path.samefile(each) for each in inputs):
        raise BadInput(f"{path} is an input, and would be overwritten; name another file")


def read_text(path: Path) -> bytes:
    """Read a text from a file, or from standard input for `-`. Raises BadInput if it cannot be read
    or has too many bytes."""
    from lockstep.harness.check.check import BadInput

    if path != STANDARD_INPUT:
        return read_file(path, LARGEST_TEXT)
    raw = sys.stdin.buffer.read(LARGEST_TEXT + 1)
    if len(raw) > LARGEST_TEXT:
        raise BadInput(f"standard input: longer than {LARGEST_TEXT:,} bytes")
    return raw
