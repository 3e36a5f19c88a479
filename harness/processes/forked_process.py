"""A process that another process has forked for us, with the interface of a subprocess. A socket
connects us to the parent of the process. The parent reaps the process only after we release it."""

import socket
import struct
from contextlib import suppress

SECONDS = 30.0  # time for the parent to reap the fork; a slower parent hangs itself
NUMBER = struct.Struct("<q")  # first the id of the process, and its status after its end


class ForkedProcess:
    def __init__(self, parent: socket.socket, seconds: float) -> None:
        """Receive the id of the new process from its parent. Raises OSError if the parent has
        ended, or does not answer within `seconds`."""
        self.parent = parent
        self.returncode: int | None = None
        parent.settimeout(seconds)
        self.pid = self._number()
        parent.settimeout(None)

    def has_ended(self) -> bool:
        try:
            self.parent.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def kill(self) -> None:
        """Ask the parent to kill the process and its descendants, because only the parent knows
        whether this id still belongs to the process.

        The process has ended when `wait` returns.
        """
        with suppress(OSError):
            self.parent.shutdown(socket.SHUT_WR)

    def wait(self) -> int:
        """Return the exit status in the form that subprocess uses. After this call the id may be
        reused for another process."""
        if self.returncode is None:
            self.returncode = -9  # it ends with its parent, which then reports nothing
            with suppress(OSError):
                self.parent.settimeout(SECONDS)
                self.returncode = self._number()
            with suppress(OSError):
                # forks of this process may hold the socket too
                self.parent.shutdown(socket.SHUT_RDWR)
            self.parent.close()
        return self.returncode

    def _number(self) -> int:
        raw = self.parent.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(raw) < NUMBER.size:
            raise ConnectionResetError("the parent of the process has ended")
        return int(NUMBER.unpack(raw)[0])
