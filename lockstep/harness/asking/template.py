"""A process that has loaded what workers need, and forks one whenever it is asked.

A worker that starts by itself loads numpy, llama.cpp and compiled callbacks for most of a second of
processor time; a fork of the template has them, and has seen no model. Whoever starts many keeps a
template (`keep_template`): it is this process's and that of all its forks.

    order = environment, path and folder, with three descriptors: of the socket by which its id and
    its status are told, of the worker's channel, of its log
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from lockstep.harness.adapters.llama_cpp.lib import ENVIRONMENT
from lockstep.harness.asking.worker import answer
from lockstep.harness.processes.forked_process import NUMBER, ForkedProcess
from lockstep.harness.processes.limits import die_with
from lockstep.harness.processes.side_by_side import BLAS
from lockstep.harness.processes.wire import Channel

PROGRAM = "lockstep.harness.asking.template"
LOADED_FIRST = ("lockstep.harness.adapters.llama_cpp.capture",)
LOADED_THEN = ("lockstep.harness.adapters.gguf_py.adapter", "gguf")
# variables that the interpreter and libraries read once, when they are loaded
READ_AT_START = ("PYTHON", "OPENBLAS_", "OMP_", "GOMP_", "KMP_", "GGML_", "LLAMA_", "NUMBA_", "LD_")
ORDER_BYTES = 1 << 17  # at most; Linux has room for some more in one message
SECONDS = 120.0  # for the first fork, with what is compiled before it


class Template:
    """Our end."""

    def __init__(self) -> None:
        self.at_start = read_at_start(os.environ)
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(absolute_path())},
                start_new_session=True,
            )
        self.close = weakref.finalize(self, end, self.orders, process, os.getpid())

    def fork(self, channel: socket.socket, log: int) -> ForkedProcess | None:
        """None: such a worker has to start by itself."""
        order = {"environ": dict(os.environ), "path": absolute_path(), "folder": os.getcwd()}
        raw = json.dumps(order).encode()
        if read_at_start(os.environ) != self.at_start or len(raw) > ORDER_BYTES:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.orders, [raw], [theirs.fileno(), channel.fileno(), log])
            except OSError:
                ours.close()
                return None
        try:
            return ForkedProcess(ours, SECONDS)
        except OSError:
            ours.close()
            return None


def end(orders: socket.socket, process: subprocess.Popen[bytes], pid: int) -> None:
    orders.close()
    if os.getpid() == pid:
        process.kill()
        process.wait()


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """With what is set before llama.cpp is loaded: it may be here already."""
    every = {**ENVIRONMENT, **variables}
    return {name: value for name, value in every.items() if name.startswith(READ_AT_START)}


def absolute_path() -> list[str]:
    return [os.path.abspath(path) for path in sys.path]  # "" is this folder


KEPT: list[Template] = []  # at most one


def forked_worker(channel: socket.socket) -> tuple[ForkedProcess, IO[bytes]] | None:
    """With its log; None: it has to start by itself."""
    if not KEPT:
        return None
    log, theirs = os.pipe()
    try:
        process = KEPT[0].fork(channel, theirs)
    finally:
        os.close(theirs)
    if process is None:
        os.close(log)
        return None
    return process, os.fdopen(log, "rb")


@contextmanager
def keep_template() -> Iterator[None]:
    """Workers that are started in here, by this process or its forks, are forks of one process;
    where there is none, they start by themselves."""
    template = None if KEPT else new_template()
    if template is None:
        yield
        return
    KEPT.append(template)
    try:
        yield
    finally:
        KEPT.pop().close()


def new_template() -> Template | None:
    alone = os.environ.get(BLAS) == "1"  # a fork has no threads of BLAS, and would wait for them
    if alone and hasattr(os, "pidfd_open"):
        with suppress(OSError):  # no more processes
            return Template()
    return None


# --- the process itself -----------------------------------------------------------------------


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
    """What is not installed or does not load, a worker says in its own words."""
    with suppress(Exception):
        from lockstep.harness.adapters.llama_cpp.lib import library

        library()  # before anything else loads llama.cpp: this sets what its threads read then
    load_modules(LOADED_FIRST)


def load_modules(names: Sequence[str]) -> None:
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
    if names:
        gc.collect()
        gc.freeze()  # a collection would write to what all forks share


class ForkedWorkers:
    """Those that nobody has let go of yet."""

    def __init__(self) -> None:
        self.waiting = selectors.DefaultSelector()
        self.held: dict[int, tuple[socket.socket, int]] = {}  # by process: who ordered it, pidfd

    def next_order(self, orders: socket.socket) -> Order | None:
        """In a fork: what it is for. In the template: None, once nobody is left to order one."""
        self.waiting.register(orders, selectors.EVENT_READ)
        missing: tuple[str, ...] = LOADED_THEN  # while llama.cpp's worker opens its model
        while True:
            for key, _ in self.waiting.select():
                if key.data is not None:
                    self.look_after(key.data, key.fd)
                    continue
                if (order := received(orders)) is None:
                    return None
                if not (pid := os.fork()):
                    order.orderer.close()
                    return order
                self.hold(pid, order)
                load_modules(missing)
                missing = ()

    def hold(self, pid: int, order: Order) -> None:
        with suppress(OSError):
            os.setpgid(pid, pid)  # before anybody can kill its group
        order.channel.close()
        os.close(order.log)
        tell(order.orderer, pid)
        self.held[pid] = order.orderer, os.pidfd_open(pid)
        for end in self.held[pid]:
            self.waiting.register(end, selectors.EVENT_READ, pid)

    def look_after(self, pid: int, descriptor: int) -> None:
        """It has ended, which is told, or has been let go of."""
        if pid not in self.held:
            return  # two events at once, and the first was the last
        orderer, ended = self.held[pid]
        if descriptor == ended:
            self.waiting.unregister(ended)
            tell(orderer, status_of(pid))
            return
        del self.held[pid]
        self.waiting.unregister(orderer)
        with suppress(KeyError):
            self.waiting.unregister(ended)
        orderer.close()
        os.close(ended)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def close(self) -> None:
        self.waiting.close()
        for orderer, ended in self.held.values():
            orderer.close()
            os.close(ended)


def received(orders: socket.socket) -> Order | None:
    raw, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES, 3)
    if len(descriptors) < 3:
        return None
    orderer, channel, log = descriptors
    ends = {"orderer": socket.socket(fileno=orderer), "channel": socket.socket(fileno=channel)}
    return Order(said=json.loads(raw), log=log, **ends)


def tell(orderer: socket.socket, number: int) -> None:
    with suppress(OSError):  # it has let go
        orderer.send(NUMBER.pack(number))


def status_of(pid: int) -> int:
    """Of a process that has ended and is not reaped yet, as subprocess gives it."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def become(order: Order, template: int) -> None:
    """The worker, as if it had been started by itself."""
    die_with(parent=template)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for descriptor in (1, 2):
        os.dup2(order.log, descriptor)
    os.close(order.log)
    os.environ.clear()
    # what an abort reads is set when llama.cpp is loaded, and here it is loaded already
    os.environ.update({**ENVIRONMENT, **order.said["environ"]})
    sys.path[:] = order.said["path"]
    sys.argv[1:] = [str(order.channel.fileno()), str(template)]
    os.chdir(order.said["folder"])
    answer(Channel(order.channel))
    os._exit(0)  # the engine is closed, and there is nothing else to put back


if __name__ == "__main__":
    main()
