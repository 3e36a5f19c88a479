"""The client side of the template: a process that has loaded the workers' modules, and forks
workers on request.

Without the template, a worker needs most of a second of processor time to load numpy, llama.cpp and
compiled callbacks. A fork of the template has already loaded these modules, but no model. A caller
that starts many workers keeps one template for all of them (`keep_template`). The template starts
before this process imports most modules, so that both processes load at the same time.
"""

import json
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import IO

from lockstep.harness.processes.forked_process import ForkedProcess
from lockstep.harness.processes.side_by_side import BLAS
from lockstep.harness.processes.spare import SPARE
from lockstep.harness.processes.variables import ENVIRONMENT, READ_AT_START

PROGRAM = "lockstep.harness.asking.template_process"
ORDER_BYTES = 1 << 17  # maximum; Linux accepts slightly more in one message
SECONDS = 120.0  # for the first fork, including compilation


class Template:
    """Our end of the template process."""

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
                # a fork lacks the threads of BLAS, and would wait for them
                env=os.environ | {"PYTHONPATH": os.pathsep.join(absolute_path()), BLAS: "1"},
                start_new_session=True,
            )
        self.process = process
        self.close = weakref.finalize(self, end, self.orders, process, os.getpid())

    def fork(self, channel: socket.socket, log: int) -> ForkedProcess | None:
        """Return a forked worker; None if the worker has to start without the template.

        Raises OSError if no worker can be forked any more, because the template has ended or does
        not answer.
        """
        order = {"environ": dict(os.environ), "path": absolute_path(), "folder": os.getcwd()}
        raw = json.dumps(order).encode()
        if read_at_start(os.environ) != self.at_start or len(raw) > ORDER_BYTES:
            return None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.orders, [raw], [theirs.fileno(), channel.fileno(), log])
            return ForkedProcess(ours, SECONDS)
        except OSError:
            ours.close()
            raise


def end(orders: socket.socket, process: subprocess.Popen[bytes], pid: int) -> None:
    orders.close()
    if os.getpid() == pid:
        process.kill()
        process.wait()


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that llama.cpp reads when it is loaded. A template that has already
    loaded llama.cpp ignores later changes."""
    every = {**ENVIRONMENT, **variables}
    return {name: value for name, value in every.items() if name.startswith(READ_AT_START)}


def absolute_path() -> list[str]:
    return [os.path.abspath(path) for path in sys.path]  # "" means the current folder


KEPT: list[Template] = []  # at most one template


def forked_worker(channel: socket.socket) -> tuple[ForkedProcess, IO[bytes]] | None:
    """Return a forked worker with its log; None if it has to start without the template."""
    if not KEPT:
        return None
    log, theirs = os.pipe()
    process = None
    try:
        process = KEPT[0].fork(channel, theirs)
    except OSError:
        KEPT.clear()  # otherwise every worker would wait for a template that hangs
    finally:
        os.close(theirs)
    if process is None:
        os.close(log)
        return None
    return process, os.fdopen(log, "rb")


@contextmanager
def keep_template(*, ahead: bool = True) -> Iterator[None]:
    """Fork all workers from one process within this context. Outside this context, each worker
    loads its modules itself. If `ahead` is True, users' engines start before they are needed."""
    template = None if KEPT else new_template()
    with SPARE.keep() if ahead else nullcontext():
        if template is None:
            yield
            return
        KEPT.append(template)
        try:
            yield
        finally:
            KEPT.clear()
            template.close()


def new_template() -> Template | None:
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):  # the system allows no more processes
            return Template()
    return None
