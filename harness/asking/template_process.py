"""The template process (`template.py` is its client). It loads modules, then forks workers.

order = environment, path and folder, with three descriptors: a socket for the worker's id and exit
status, the worker's channel, and the worker's log
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lockstep.harness.asking.template import ORDER_BYTES
from lockstep.harness.asking.worker import answer
from lockstep.harness.processes.forked_process import NUMBER
from lockstep.harness.processes.limits import die_with
from lockstep.harness.processes.variables import ENVIRONMENT
from lockstep.harness.processes.wire import Channel

LOADED_FIRST = ("lockstep.harness.adapters.llama_cpp.capture",)
LOADED_THEN = (
    "lockstep.harness.adapters.llama_cpp.adapter",
    "lockstep.engine.ops.ggml.attention",  # needed to describe a build
    "lockstep.harness.adapters.gguf_py.adapter",
    "gguf",
)


@dataclass(frozen=True, kw_only=True)
class Order:
    said: dict[str, Any]
    orderer: socket.socket
    channel: socket.socket
    log: int


def main() -> None:
    die_with(parent=int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load()
    template, forks = os.getpid(), ForkedWorkers()
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        order = forks.next_order(orders)
    forks.close()
    if order is not None:
        become(order, template)


def load() -> None:
    """Load the modules. Errors are ignored here: each worker reports the module that is missing or
    does not load."""
    with suppress(Exception):
        from lockstep.harness.adapters.llama_cpp.lib import library

        library()  # first, because this sets the variables that llama.cpp reads when it is loaded
    load_modules(LOADED_FIRST)


def load_modules(names: Sequence[str]) -> None:
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
    if names:
        gc.collect()
        gc.freeze()  # otherwise a garbage collection would write to pages that all forks share


def find_conversions() -> None:
    """Find llama.cpp's conversions once, because the search would take a tenth of a second in each
    worker."""
    with suppress(Exception):
        from lockstep.harness.adapters.llama_cpp.activations import generic_formats
        from lockstep.harness.adapters.llama_cpp.lib import library

        generic_formats(library())


class ForkedWorkers:
    """Workers that are not released yet."""

    def __init__(self) -> None:
        self.waiting = selectors.DefaultSelector()
        # by process: the socket of its orderer, pidfd
        self.held: dict[int, tuple[socket.socket, int]] = {}

    def next_order(self, orders: socket.socket) -> Order | None:
        """Wait for orders, and fork a worker for each. In a fork, return its order. In the
        template, return None when the other side closes the socket."""
        self.waiting.register(orders, selectors.EVENT_READ)
        missing: tuple[str, ...] = LOADED_THEN  # loaded while the first worker opens its model
        while True:
            for key, _ in self.waiting.select():
                if key.data is not None:
                    self.look_after(key.data, key.fd)
                    continue
                try:
                    order = receive_order(orders)
                except EOFError:
                    return None
                if order is None or (fork := fork_worker()) is None:
                    close(order)  # the orderer notices this, and starts a worker of its own
                    continue
                pid, ended = fork
                if not pid:
                    order.orderer.close()
                    return order
                self.hold(pid, ended, order)
                if missing:
                    find_conversions()
                    load_modules(missing)
                missing = ()

    def hold(self, pid: int, ended: int, order: Order) -> None:
        with suppress(OSError):
            os.setpgid(pid, pid)  # before another process can kill the group
        order.channel.close()
        os.close(order.log)
        tell(order.orderer, pid)
        self.held[pid] = order.orderer, ended
        for end in self.held[pid]:
            self.waiting.register(end, selectors.EVENT_READ, pid)

    def look_after(self, pid: int, descriptor: int) -> None:
        """Report to the client that its worker has ended, or end the worker if the client closed
        the socket."""
        if pid not in self.held:
            return  # two events may arrive at once, and the process is gone after the first
        orderer, ended = self.held[pid]
        if descriptor == ended:
            self.waiting.unregister(ended)
            tell(orderer, status_of(pid))
            return
        del self.held[pid]
        self.waiting.unregister(orderer)
        with suppress(KeyError):
            self.waiting.unregister(ended)
        os.close(ended)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        orderer.close()  # tells the orderer that the process has ended

    def close(self) -> None:
        self.waiting.close()
        for orderer, ended in self.held.values():
            orderer.close()
            os.close(ended)


def receive_order(orders: socket.socket) -> Order | None:
    """Return the next order; None if its descriptors were lost because too many files are open.
    Raises EOFError when the other side has closed the socket."""
    raw, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES, 3)
    if not raw:
        raise EOFError
    if len(descriptors) < 3:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    orderer, channel, log = descriptors
    ends = {"orderer": socket.socket(fileno=orderer), "channel": socket.socket(fileno=channel)}
    return Order(said=json.loads(raw), log=log, **ends)


def fork_worker() -> tuple[int, int] | None:
    """Fork a worker. Return its process id (0 in the fork) and a descriptor that reports its end.
    Return None if no more forks are possible."""
    pid = 0
    try:
        if not (pid := os.fork()):
            return 0, -1
        return pid, os.pidfd_open(pid)
    except OSError:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return None


def close(order: Order | None) -> None:
    if order is not None:
        order.orderer.close()
        order.channel.close()
        os.close(order.log)


def tell(orderer: socket.socket, number: int) -> None:
    with suppress(OSError):  # the orderer closed the socket
        orderer.send(NUMBER.pack(number))


def status_of(pid: int) -> int:
    """Return the exit status of a process that has ended and is not reaped yet, in the form that
    subprocess uses."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def become(order: Order, template: int) -> None:
    """Turn this process into a worker, in the state of a worker that was started without a
    template."""
    die_with(parent=template)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for descriptor in (1, 2):
        os.dup2(order.log, descriptor)
    os.close(order.log)
    os.environ.clear()
    # llama.cpp is already loaded, so variables that it reads for an abort are set here
    os.environ.update({**ENVIRONMENT, **order.said["environ"]})
    sys.path[:] = order.said["path"]
    sys.argv[1:] = [str(order.channel.fileno()), str(template)]
    os.chdir(order.said["folder"])
    answer(Channel(order.channel))
    os._exit(0)  # the engine is closed, so nothing else needs a clean-up


if __name__ == "__main__":
    main()
