"""The process in which an untrusted engine answers: `python -m ...asking.worker SOCKET [PARENT]`.

PARENT is given if no keeper (limits.py) ends the worker together with its parent. SOCKET is the
number of an inherited socket. Answers go through this socket, so output of C code (file descriptors
1 and 2) goes to the log and never into an answer. The first message names the adapter to load. The
second message names the model and the settings. Every later message is a question. The adapter
lives as long as the process.
"""

import contextlib
import faulthandler
import importlib
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.engine.errors import EngineError, NotInModel, Unsupported
from lockstep.harness.adapters import adapter_class
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.parts.users import add_levels, is_users, lacks
from lockstep.harness.asking.put_in import PutIn, watch_values
from lockstep.harness.processes.limits import die_with, limit_memory
from lockstep.harness.processes.wire import Channel, Closed, WireError

QUESTIONS = (
    *("describe", "metadata", "parse", "tokenize", "detokenize", "evaluate", "greedy"),
    *("embed", "logprobs", "generate"),
    *("dequantize", "multiply", "time_dequantize", "name_tensors", "capture", "compute"),
    *("operate", "schedule", "sample", "draw", "time_capture", "save", "load", "guide"),
    "restore",
)
STREAMS = ("capture",)  # questions whose answer comes in pieces; they take a function `emit`


def main() -> None:
    if sys.argv[2:]:
        die_with(parent=int(sys.argv[2]))
    answer(Channel(socket.socket(fileno=int(sys.argv[1]))))


def answer(channel: Channel) -> None:
    """Answer questions until the session ends."""
    faulthandler.enable()
    with contextlib.suppress(Closed):
        serve(channel)


def serve(channel: Channel) -> None:
    loading = channel.receive()
    for module in loading["modules"]:
        importlib.import_module(module)
    users = is_users(loading["adapter"])
    if users:
        limit_memory(loading["memory_limit"])  # before any of the user's code runs
    try:
        cls = adapter_class(loading["adapter"])
    except EngineError as error:
        channel.send({"kind": "unable", "message": str(error)})
        return
    limit_memory(loading["memory_limit"])
    channel.send({"kind": "ready"})
    opening = channel.receive()
    model = None if opening["model"] is None else Path(opening["model"])
    adapter: Adapter | None = None
    try:
        while True:
            call = channel.receive()
            started = time.perf_counter()
            if users and lacks(cls, call["question"]):
                deliver(channel, not_offered(cls, call["question"]))
                continue
            given, args = watch_values(call["args"]) if users else (PutIn(), call["args"])
            try:
                adapter = adapter or make_adapter(cls, model, opening["settings"])
                extra = {"emit": piece_by_piece(channel)} if call["question"] in STREAMS else {}
                value = getattr(adapter, call["question"])(*args, **call["kwargs"], **extra)
                seconds = time.perf_counter() - started
                if users and call["question"] == "describe":
                    value = add_levels(cls, value)
                answer = {"kind": "value", "value": value, "seconds": seconds}
                if given.is_ignored:
                    answer = refuse_ignored_values(cls)
            except Exception as error:
                answer = failure(error)
            deliver(channel, answer)
    finally:
        if adapter is not None:
            adapter.close()


def refuse_ignored_values(cls: type[Adapter]) -> dict[str, Any]:
    """Return a refusal for an engine that ignores replaced values. Otherwise the suites would
    accuse a correct engine."""
    text = f"{cls.name} ignores values that are put in: request.replace"
    return {"kind": "unanswerable", "message": text, "of_model": False, "declared": True}


def make_adapter(cls: type[Adapter], model: Path | None, settings: Any) -> Adapter:
    """Make an adapter. Set `model` and `settings` if the user's own __init__ does not call ours."""
    adapter = cls(model, settings)
    for name, value in (("model", model), ("settings", settings)):
        if not hasattr(adapter, name):
            setattr(adapter, name, value)
    return adapter


def not_offered(cls: type[Adapter], question: str) -> dict[str, Any]:
    text = f"{cls.name} does not offer {question}"
    return {"kind": "unanswerable", "message": text, "of_model": False, "declared": True}


def piece_by_piece(channel: Channel) -> Callable[[Any], None]:
    """Return a function that sends each piece at once. It waits while the receiver is busy with
    earlier pieces."""
    return lambda value: channel.send({"kind": "piece", "value": value})


def deliver(channel: Channel, answer: Mapping[str, Any]) -> None:
    try:
        channel.send(answer)
    except WireError as error:
        channel.send(failure(error))


class ReportedRefusal(EngineError):
    """Error: a second engine, from which this engine gets its answers, refused. The error carries
    the second engine's message."""


class Crash(Exception):
    """Error: a program that an engine needs has crashed. The message is a sentence that says how
    the program crashed."""


def failure(error: Exception) -> dict[str, Any]:
    """Convert an exception to a message about the engine that raised it."""
    if isinstance(error, Unsupported):
        of_model = isinstance(error, NotInModel)
        said = {"message": str(error), "of_model": of_model, "declared": False}
        return {"kind": "unanswerable", **said}
    if isinstance(error, WireError):
        return {"kind": "malformed", "message": str(error)}
    if isinstance(error, EngineError):
        name = "" if isinstance(error, ReportedRefusal) else f"{type(error).__name__}: "
        return {"kind": "rejected", "message": f"{name}{error}"}
    if isinstance(error, Crash):
        return {"kind": "crashed", "message": str(error)}
    if isinstance(error, MemoryError):
        return {"kind": "crashed", "message": f"out of memory: {error}".rstrip(": ")}
    # The error comes first, because many readers see only the beginning. Then follow the engine's
    # own frames, without the worker's.
    what = "".join(traceback.format_exception_only(error)).strip()
    frames = [frame for frame in traceback.format_tb(error.__traceback__) if __file__ not in frame]
    return {"kind": "crashed", "message": "\n".join([what, *frames[-2:]]).rstrip()}


if __name__ == "__main__":
    main()
