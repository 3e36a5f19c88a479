"""How our reader parses a GGUF file: its kinds, the digest of what it read, the memory it took."""

import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from engine.errors import MalformedFile
from engine.gguf_fields import Value, ValueType
from engine.gguf_file import GgufFile
from harness.adapters.parsing import ACCEPTED, CRASHED, HUNG, Row, answer_of, digest, extents, to_c
from harness.adapters.parsing import scalar as plain

MEASURED = 64  # one file in so many, and the only file of a question
Open = Callable[[bytes], GgufFile]


class TooLong(BaseException):
    """Not an Exception: a reader that catches those is still stopped."""


def parse(open_file: Open, files: Sequence[bytes], seconds: float) -> dict[str, Any]:
    rows, words = [], {}
    with stopwatch() as start:
        for at, raw in enumerate(files):
            start(seconds)
            row, reason = parse_one(open_file, raw, measured=at % MEASURED == 0)
            rows.append(row)
            if reason:
                words[at] = reason
    return answer_of(rows, words)


def parse_one(open_file: Open, raw: bytes, *, measured: bool) -> tuple[Row, str]:
    """The memory is what Python and numpy allocate; it is dear to watch, so most are not."""
    peak = -1
    if measured:
        tracemalloc.start()
    try:
        file = open_file(raw)
        if measured:
            peak = tracemalloc.get_traced_memory()[1]
        return (ACCEPTED, digest_of(file), peak), ""
    except MalformedFile as error:
        if measured:
            peak = tracemalloc.get_traced_memory()[1]
        return (error.kind, 0, peak), str(error) if measured else ""
    except TooLong:
        return (HUNG, 0, -1), "it did not end"
    except Exception as error:
        return (CRASHED, 0, -1), f"{type(error).__name__}: {error}"
    finally:
        if measured:
            tracemalloc.stop()


@contextmanager
def stopwatch() -> Iterator[Callable[[float], None]]:
    """Starts the time of a file anew; at its end, TooLong. Only a main thread can be stopped."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TooLong

    if threading.current_thread() is not threading.main_thread():
        yield lambda seconds: None
        return
    before = signal.signal(signal.SIGPROF, too_long)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def digest_of(file: GgufFile) -> int:
    return digest(
        (file.version, file.alignment, file.data_offset),
        [(to_c(bytes_of(key)), *typed(value)) for key, value in file.metadata.items()],
        [
            (to_c(bytes_of(t.name)), extents(t.ne), t.type.id, t.offset, t.n_bytes)
            for t in file.tensors.values()
        ],
    )


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def typed(value: Value) -> tuple[int, int, Any]:
    if value.element is None:
        data = value.data
        return int(value.type), -1, to_c(bytes_of(data)) if isinstance(data, str) else plain(data)
    return int(value.type), int(value.element), items(value)


def items(value: Value) -> Any:
    if value.element is ValueType.STR:
        return tuple(to_c(bytes_of(text)) for text in value.data)
    if value.element is ValueType.ARR:
        return tuple(typed(item) for item in value.data)
    return value.data.tobytes()
