"""Standard output and error of a command: always open, free of secrets, and without effect on exit
codes.

If a stream fails, Python itself ends with exit code 1 or 120. In Lockstep exit code 1 means a
divergence.
"""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast

from lockstep.harness.redaction import redact

STREAMS = (0, 1, 2)  # descriptors of standard input, output and error


class OutputFailed(Exception):
    """Raised if standard output cannot be written. The class is not a subclass of OSError, because
    click ends with exit code 1 for some such errors."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class OutputStream:
    """A stream that removes secrets from all text that is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        # kept here, because click swallows it when it tests streams
        self.failed: OutputFailed | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self.check()
        try:
            self.stream.write(redact(text))
        except OSError as error:
            self.fail(error)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self.fail(error)

    def check(self) -> None:
        if self.failed is not None:
            raise self.failed

    def fail(self, error: OSError) -> None:
        discard(self.stream)
        is_pipe = isinstance(error, BrokenPipeError)  # for example, `lockstep ... | head`
        self.failed = OutputFailed(141 if is_pipe else 2)
        if not is_pipe:
            sys.stderr.write(f"lockstep: standard output cannot be written: {error.strerror}\n")
        raise self.failed from error


class ErrorStream(OutputStream):
    """Standard error for remarks. If it cannot be written, the command continues without them."""

    def fail(self, error: OSError) -> None:
        discard(self.stream)


def open_streams() -> None:
    """Prepare standard output and error of this process."""
    for number in STREAMS:
        try:
            os.fstat(number)
        # a closed descriptor would be reused for the next file, which would then get the output
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):  # characters that a stream cannot encode are replaced
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, OutputStream(sys.stdout or os.fdopen(1, "w", closefd=False)))
    sys.stderr = cast(TextIO, ErrorStream(sys.stderr or os.fdopen(2, "w", closefd=False)))


def discard(stream: TextIO) -> None:
    """Discard all further output, including the output at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def close_output(code: int) -> int:
    """Write the buffered rest of standard output, and return the exit code."""
    try:
        sys.stdout.flush()
        if isinstance(sys.stdout, OutputStream):
            sys.stdout.check()
    except OutputFailed as error:
        return error.code
    return code
