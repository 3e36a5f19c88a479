"""A process with a keeper (limits.py). When the process ends, all its descendants end."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.harness.processes import limits

# name of a variable by which descendants are found even after the keeper's death
MARK = "LOCKSTEP_KEPT"


class KeptProcess(subprocess.Popen[bytes]):
    """The keeper of a process. It ends when the process ends."""

    def __init__(self, command: Sequence[str], memory_limit: int | None, **of_popen: Any) -> None:
        keeper = [sys.executable, "-I", "-S", limits.__file__, str(os.getpid())]
        self.mark = secrets.token_hex(16)
        of_popen["env"] = {**(of_popen.get("env") or os.environ), MARK: self.mark}
        super().__init__(
            [*keeper, str(memory_limit or 0), *command], start_new_session=True, **of_popen
        )

    def kill(self) -> None:
        """End the process with all processes that it has started, and wait for their end."""
        self.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 2 * limits.KILL_SECONDS  # the keeper's own limit, doubled
        while time.monotonic() < deadline:
            self.send_signal(signal.SIGCONT)  # an engine may have stopped its keeper
            with suppress(subprocess.TimeoutExpired):
                self.wait(0.05)
                break
        else:
            super().kill()
        if self.returncode != 0:  # an engine may kill its keeper, which then ends nothing
            kill_marked(MARK, self.mark)


def kill_marked(variable: str, mark: str) -> None:
    """Kill each process whose variable has this value, and repeat until none is left, because
    killed processes may have started others.

    A descendant that was started with other environment variables has no mark and is not killed.
    """
    deadline = time.monotonic() + limits.KILL_SECONDS
    while time.monotonic() < deadline and (found := processes_marked(variable, mark)):
        for pid in found:
            with suppress(OSError):  # the process has ended
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)  # a short wait while the kernel ends them


def processes_marked(variable: str, mark: str) -> list[int]:
    """Return the ids of the current user's processes with this mark; none without /proc."""
    wanted, found = f"{variable}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
