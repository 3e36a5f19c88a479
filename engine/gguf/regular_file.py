"""Regular files only: pipes and devices may block, or never end."""

import errno
import stat
from io import BufferedReader
from pathlib import Path

WHAT = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(path: Path) -> None:
    """Check that a path is a regular file, without opening it. Raises OSError that names the
    kind."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None
    except ValueError as error:  # the name contains a NUL
        raise OSError(errno.EINVAL, f"not a file name ({error})", str(path)) from None
    if not stat.S_ISREG(mode):
        what = WHAT.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"{what}; expected a regular file", str(path))


def open_regular(path: Path) -> BufferedReader:
    check_regular(path)
    return path.open("rb")


def read_regular(path: Path, limit: int | None = None) -> bytes:
    """Return the whole file; raises OSError if it is longer than `limit` bytes."""
    with open_regular(path) as file:
        raw = file.read(-1 if limit is None else limit + 1)
    if limit is not None and len(raw) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit:,} bytes", str(path))
    return raw
