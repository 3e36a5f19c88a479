"""Our reader as a parser of GGUF files: the kinds of failure, a digest of the content, and the
memory used."""

import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.fields import Value, ValueType
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.parts.parsing import (
    ACCEPTED,
    CRASHED,
    HUNG,
    SPARE_MEMORY,
    CostLimits,
    Row,
    answer_of,
    digest,
    extents,
    to_c,
)
from lockstep.harness.adapters.parts.parsing import scalar as plain

AGAIN = 3  # repeated measurements of a file that seems to use too much memory
LIMITS = CostLimits()
FEW = 64  # number of files up to which reasons are kept
Open = Callable[[bytes], GgufFile]


class TooLong(BaseException):
    """Raised if a reader exceeds its time limit. A reader cannot catch it by catching Exception."""


def parse(open_file: Open, files: Sequence[bytes], limits: CostLimits = LIMITS) -> dict[str, Any]:
    """Parse the files, and measure the memory that Python and numpy allocate for each file. Other
    threads allocate too. So a file that seems to need much memory is opened again, and the smallest
    measurement counts."""
    rows, words = [], {}
    with stopwatch() as start:
        for at, raw in enumerate(files):
            start(limits.seconds_for(len(raw)))
            row, reason = parse_one(open_file, raw)
            rows.append(row)
            if reason and (len(files) <= FEW or row[0] == CRASHED):
                words[at] = reason
    return answer_of(rows, words)


def parse_one(open_file: Open, raw: bytes) -> tuple[Row, str]:
    try:
        file, peak = open_or_reason(open_file, raw)
        if isinstance(file, MalformedFile):
            return (file.kind, 0, peak), str(file)
        return (ACCEPTED, digest_of(file), peak), ""
    except TooLong:
        return (HUNG, 0, -1), "it did not end"
    except Exception as error:
        return (CRASHED, 0, -1), f"{type(error).__name__}: {error}"


def open_or_reason(open_file: Open, raw: bytes) -> tuple[GgufFile | MalformedFile, int]:
    """Open the file, or return why it is invalid. Also return the peak of memory."""
    least = -1
    for _ in range(AGAIN):
        tracemalloc.start()
        try:
            file: GgufFile | MalformedFile = open_file(raw)
        except MalformedFile as error:
            file = error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        least = peak if least < 0 else min(least, peak)
        if least <= SPARE_MEMORY:
            break
    return file, least


@contextmanager
def stopwatch() -> Iterator[Callable[[float], None]]:
    """Yield a function that starts a file's time limit, which raises TooLong. Only the main thread
    can be interrupted; elsewhere there is no limit."""

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
        [(to_c(bytes_of(key)), *typed_value(value)) for key, value in file.metadata.items()],
        [
            (to_c(bytes_of(t.name)), extents(t.ne), t.type.id, t.offset, t.n_bytes)
            for t in file.tensors.values()
        ],
    )


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def typed_value(value: Value) -> tuple[int, int, Any]:
    if value.element is None:
        data = value.data
        return int(value.type), -1, to_c(bytes_of(data)) if isinstance(data, str) else plain(data)
    return int(value.type), int(value.element), items(value)


def items(value: Value) -> Any:
    if value.element is ValueType.STR:
        return tuple(to_c(bytes_of(text)) for text in value.data)
    if value.element is ValueType.ARR:
        return tuple(typed_value(item) for item in value.data)
    return value.data.tobytes()
