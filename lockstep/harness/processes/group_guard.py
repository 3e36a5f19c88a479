"""Whatever a program has started ends with Lockstep, however Lockstep ends.

The kernel kills the program itself with its parent (`limits.py`), not what that has started in its
turn: a server behind a script would hold its port, and a model in memory, until somebody looks. A
guard waits for the end of a pipe that Lockstep alone holds open, and kills the group.

Imports next to nothing, because it also runs as a program: `python -I -S group_guard.py GROUP`.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress


class GroupGuard:
    """Of a group whose leader is not reaped before `close`: its number is nobody else's."""

    def __init__(self, group: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(group)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # an interrupt of Lockstep is not for it
        )

    def close(self) -> None:
        """From now on it does nothing."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def main() -> None:
    sys.stdin.buffer.read()
    with suppress(ProcessLookupError):
        os.killpg(int(sys.argv[1]), signal.SIGKILL)


if __name__ == "__main__":
    main()
