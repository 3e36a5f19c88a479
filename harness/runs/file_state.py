"""Checks that a file did not change during a run, which would make its verdicts meaningless."""

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.harness.report.header import sha256_of


@dataclass(frozen=True)
class FileState:
    """The system's facts about a file, and its hash after it was read."""

    size: int
    modified: int  # nanoseconds since 1970
    inode: tuple[int, int]  # changes if another file takes the place of the file
    sha256: str = ""  # empty if unknown

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """Return the state of a file. Raises OSError if it is missing."""
        found = os.stat(path)
        return cls(found.st_size, found.st_mtime_ns, (found.st_dev, found.st_ino))

    def with_hash(self, path: Path) -> "FileState":
        """Return this state with the file's hash. Omit the hash if the file changed before it was
        read completely."""
        try:
            sha256 = sha256_of(path)
            return replace(self, sha256=sha256) if FileState.of(path) == self else self
        except OSError:
            return self

    def row(self) -> dict[str, Any]:
        """Return the file's row for the header of a report."""
        return {"sha256": self.sha256, "bytes": self.size}

    def change(self, path: Path) -> str:
        """Return a sentence that says how the file has changed; "" if its bytes are the same."""
        try:
            now = FileState.of(path)
            if now == replace(self, sha256=""):
                return ""
            sha256 = sha256_of(path)
        except OSError as error:
            return (
                f"{path} was deleted during the check ({error.strerror or error}); it had "
                f"{self.size:,} bytes"
            )
        if sha256 == self.sha256:
            return ""
        return (
            f"{path} changed during the check: it had {self.size:,} bytes, modified "
            f"{clock(self.modified)}, sha256 {self.sha256[:12] or 'not known'}; now "
            f"{now.size:,} bytes, {clock(now.modified)}, {sha256[:12]}"
        )


def clock(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
