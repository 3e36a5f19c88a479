"""A process that does works one after the other: `python -m ...work_process SOCKET`.

It is a new process, not a fork, so a process with threads may start it. From its second work on,
all modules are loaded. Works and messages are sent as pickles, because both sides are our own code.
Data of engines and models never arrive as pickles; engines' adapters use
`harness.processes.wire`.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from lockstep.harness.asking.template import keep_template
from lockstep.harness.parallel.children import Died, Event, Said, Work, ending_of
from lockstep.harness.processes.allocator import keep_freed_memory
from lockstep.harness.processes.engine_process import EngineProcess
from lockstep.harness.processes.side_by_side import BLAS, interrupts_later


class WorkProcess(EngineProcess):
    """The parent's side of a process for works. Closing it ends the process at any time."""

    def __init__(self, variables: Mapping[str, str | None], folder: str | None = None) -> None:
        """Start the process. `variables` are changes to its environment; a value of None removes
        the variable. `folder` is its working folder."""
        ours, theirs = socket.socketpair()
        paths = [os.path.abspath(path) for path in sys.path]  # "" means the current folder
        inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        every = {BLAS: "1", **inherited, **variables}
        with theirs, interrupts_later():
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "lockstep.harness.parallel.work_process",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env={name: value for name, value in every.items() if value is not None},
                cwd=folder,
                start_new_session=True,
            )
        assert process.stdout is not None
        self.connection = Connection(ours.detach())
        super().__init__(process, process.stdout, self.connection)

    def begin(self, work: Work) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `next_event` reports how it died
            self.connection.send(work)

    def next_event(self) -> Event:
        """Return the next event of the current work. After `Died` the process no longer exists."""
        try:
            event: Event = self.connection.recv()
            return event
        except (EOFError, OSError):
            return Died(self.death())


# --- the process itself -----------------------------------------------------------------------


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt does
    keep_freed_memory()
    connection = Connection(int(sys.argv[1]))
    with keep_template():
        for work in works_from(connection):
            event = ending_of(work, lambda value: connection.send(Said(value)))
            connection.send(event)


def works_from(connection: Connection) -> Iterator[Work]:
    """Yield works as they arrive, until the other side closes the connection."""
    works: SimpleQueue[Work] = SimpleQueue()

    def read() -> None:
        while True:
            try:
                works.put(connection.recv())
            except (EOFError, OSError):
                os._exit(0)

    Thread(target=read, daemon=True).start()
    while True:
        yield works.get()


if __name__ == "__main__":
    main()
