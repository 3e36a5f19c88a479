"""One temporary folder for a command: whatever is put into temporary folders goes with it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lockstep.harness.processes.side_by_side import TEMPORARY


@contextmanager
def one_temporary_folder() -> Iterator[None]:
    """In here all temporary folders, also of processes that are started, lie in one.

    Each is removed by whoever has made it, unless its process is killed or may open no more files:
    this one is removed when everything else has been closed.
    """
    before = os.environ.get(TEMPORARY), tempfile.tempdir
    try:
        folder = tempfile.mkdtemp(prefix="lockstep-")
    except OSError:  # whoever needs a folder says so
        yield
        return
    os.environ[TEMPORARY] = tempfile.tempdir = folder
    try:
        yield
    finally:
        variable, tempfile.tempdir = before
        del os.environ[TEMPORARY]
        os.environ.update({TEMPORARY: variable} if variable is not None else {})
        remove_tree(folder)


def remove_tree(folder: str) -> None:
    """Remove what can be removed, with one open file at a time; shutil.rmtree takes two a level."""
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(parent, name)
            with suppress(OSError):
                if os.path.islink(path) or not os.path.isdir(path):
                    os.unlink(path)
                else:
                    os.rmdir(path)
    with suppress(OSError):
        os.rmdir(folder)
