"""A process with a keeper (limits.py): its end is the end of all that it has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
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
        """End it with all that it has started; all have ended when `wait` returns."""
        for number in (signal.SIGTERM, signal.SIGCONT):  # an engine may have stopped its keeper
            self.send_signal(number)
