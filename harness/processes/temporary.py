"""One temporary folder for a command, which contains all its other temporary folders."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from lockstep.harness.processes.side_by_side import TEMPORARY

PREFIX = "lockstep-"
LOCK = ".lock"  # file in a folder that is locked while a process of its command lives


@contextmanager
def one_temporary_folder() -> Iterator[None]:
    """Put all temporary folders of this context and of its child processes into one folder. Code
    that creates a temporary folder removes it, unless its process is killed or cannot open more
    files. The common folder is removed last. If the command is killed, the next command removes the
    common folder."""
    before = os.environ.get(TEMPORARY), tempfile.tempdir
    try:
        remove_abandoned(tempfile.gettempdir())
        folder = tempfile.mkdtemp(prefix=PREFIX)
    except OSError:  # commands that need a folder report the error
        yield
        return
    os.environ[TEMPORARY] = tempfile.tempdir = folder
    try:
        with locked_folder(folder):
            yield
    finally:
        variable, tempfile.tempdir = before
        del os.environ[TEMPORARY]
        os.environ.update({TEMPORARY: variable} if variable is not None else {})
        remove_tree(folder)


@contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Hold the folder's lock. The kernel releases it when this process and its forks have ended."""
    with ExitStack() as stack:
        with suppress(OSError):  # without a lock, the folder does not count as abandoned
            name = os.path.join(folder, LOCK)
            file = stack.enter_context(open(f"{name}-new", "xb"))
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(f"{name}-new", name)  # so that the lock file is never visible without a lock
        yield


def remove_abandoned(parent: str) -> None:
    """Remove the current user's folders of killed commands, whose locks are free."""
    with os.scandir(parent) as every:
        entries = list(every)
    for entry in entries:
        with suppress(OSError):
            about = entry.stat(follow_symlinks=False)
            own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            if not entry.name.startswith(PREFIX) or not own:
                continue
            with open(os.path.join(entry.path, LOCK), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(entry.path)


def remove_tree(folder: str) -> None:
    """Remove as much of the folder as possible, with one open file at a time. shutil.rmtree needs
    two open files for each level."""
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
