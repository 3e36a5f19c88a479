"""A process with a keeper (limits.py): its end is the end of all that it has started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from lockstep.harness.processes import limits


class KeptProcess(subprocess.Popen[bytes]):
    """The keeper, which ends as the process ends."""

    def __init__(self, command: Sequence[str], memory_limit: int | None, **of_popen: Any) -> None:
        keeper = [sys.executable, "-I", "-S", limits.__file__, str(os.getpid())]
        super().__init__(
            [*keeper, str(memory_limit or 0), *command], start_new_session=True, **of_popen
        )

    def kill(self) -> None:
        """End it with all that it has started, and wait for that."""
        self.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 2 * limits.KILL_SECONDS  # the keeper's own time, and a spare
        while time.monotonic() < deadline:
            self.send_signal(signal.SIGCONT)  # an engine may stop its keeper, at any time
            with suppress(subprocess.TimeoutExpired):
                self.wait(0.05)
                return
        super().kill()
