"""Engines for tests of the runner, each with one kind of misbehaviour."""

import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, MalformedFile
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.records import Captured, EngineInfo, Evaluation, Fault, FileSummary, Request
from tests.shadow_nodes import node, normal, piece

X = normal(1, 2, 8)
SUM = piece(node("ADD", X + X, X, X))


class Fake(Adapter, name="fake"):
    """An engine that answers `dequantize`, and `greedy` with its process id. Other questions fail,
    each in a different way; the text of `tokenize` names the way."""

    isolated = True

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        os.write(1, b"an answer on standard output")
        return raw.astype(np.float32) * 2

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return [os.getpid()]

    def metadata(self) -> FileSummary:
        raise MalformedFile("magic", 0, "this is no GGUF file")

    def evaluate(self, request: Request) -> Evaluation:
        raise ZeroDivisionError("a bug in the adapter")

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        os.write(2, b"asked to " + texts[0] + b"\n")
        getattr(self, texts[0].decode())()
        return []

    def capture(
        self, batches: Sequence[Batch], fault: Fault | None, emit: Callable[[Any], None]
    ) -> Captured:
        """Emit one piece per token, then misbehave as the fault's kind says."""
        for token in batches[0].tokens:
            emit(piece(node("ADD", np.full(3, token, np.float32))))
        if fault is not None:
            getattr(self, fault.kind)()
        return Captured(nodes=len(batches[0]), views=0)

    def segfault(self) -> None:
        ctypes.string_at(0)

    def abort(self) -> None:
        os.write(2, b"GGML_ASSERT(it) failed\n")
        os.abort()

    def ggml_abort(self) -> None:
        from lockstep.harness.adapters.llama_cpp.lib import library

        library()
        llama_cpp = importlib.import_module("llama_cpp")
        llama_cpp.llama_cpp._lib.ggml_abort(b"it.c", 7, b"it")

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def exit(self) -> None:
        sys.exit(3)

    def hang(self) -> None:
        time.sleep(3600)

    def hang_in_c(self) -> None:
        ctypes.PyDLL(None).sleep(3600)  # PyDLL holds the interpreter's lock

    def eat_memory(self) -> None:
        held = [np.ones(1 << 20) for _ in range(1 << 20)]
        raise AssertionError(f"{len(held)} MiB * 8 were given")

    def chatter(self) -> None:
        for i in range(100_000):
            os.write(2, b"line %d\n" % i)
        os.abort()

    def babble(self) -> None:
        """Write into the protocol's own socket, as a compromised engine might."""
        os.write(int(sys.argv[1]), b"\x00" * 64)
        time.sleep(3600)

    def refuse(self) -> None:
        raise EngineError("refused on purpose")


class Local(Adapter, name="fake-local"):
    """An engine in the asking process."""

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return [os.getpid()]

    def metadata(self) -> FileSummary:
        raise MalformedFile("magic", 0, "this is no GGUF file")

    def evaluate(self, request: Request) -> Evaluation:
        raise ZeroDivisionError("a bug in the adapter")


class WrongType(Adapter, name="fake-wrong-type"):
    """An engine that answers with a forbidden type."""

    isolated = True

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return object()  # type: ignore[return-value]


class Clumsy(Adapter, name="fake-clumsy"):
    """An engine whose constructor refuses its model."""

    def __init__(self, *args: object) -> None:
        raise EngineError("there is no such model")


class Generic(Adapter, name="fake-generic"):
    """A build that rounds activations as generic C does; it answers nothing else."""

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version="1", generic=("Q8_0", "Q8_1"))


class Absent(Adapter, name="fake-absent"):
    """An engine that cannot be started."""

    def describe(self) -> EngineInfo:
        raise FileNotFoundError("no library of that name\nnot anywhere")


class Apart(Adapter, name="fake-apart"):
    """An engine in a separate process, whose answers never fit the question."""

    isolated = True

    def evaluate(self, request: Request) -> Evaluation:
        return Evaluation(logits=(), trace=None)

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return raw.astype(np.float32)[:-1]

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version=None)  # type: ignore[arg-type]

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return (token for token in prompt)  # type: ignore[return-value]

    def capture(
        self, batches: Sequence[Batch], fault: Fault | None, emit: Callable[[Any], None]
    ) -> Captured:
        emit(SUM if fault is None else None)
        return Captured(nodes=-1, views=0)
