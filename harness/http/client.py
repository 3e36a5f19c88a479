"""HTTP client for one question: it sends a request and reads the JSON answer. All data from a
server are untrusted.

The time limit covers everything from the connection to the last byte. Sizes are checked before
memory is allocated. Redirects are not followed, because they could lead anywhere.
"""

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from lockstep.engine.errors import Unsupported
from lockstep.harness.processes.wire import Closed, WireError
from lockstep.harness.redaction import API_KEY

# bytes of an answer. A list of a thousand candidates has some hundred kilobytes. JSON that consists
# only of brackets needs twenty times as much memory.
LARGEST = 8 << 20
LARGEST_ERROR = 1 << 16  # bytes of a refusal, which is a sentence
PIECE = 1 << 20
LACKING = (404, 405, 501)  # the server lacks the page
REFUSALS = (400, 413, 422)  # the server refuses the request; 413: it is too long


class StatusRefused(Exception):
    """Error: the server answered with a status other than success. It carries the server's message.
    `wait` is the number of seconds after which the server wants to be asked again, None if the
    server does not say."""

    def __init__(self, status: int, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.wait = status, message, wait


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a server. `base` is the path with which all requests begin, without a final
    slash."""

    secure: bool
    host: str
    port: int
    base: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.secure}://{host}:{self.port}{self.base}"


def address_of(url: str) -> Address:
    """Parse a server's address. Raises Unsupported if it is invalid."""
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError as error:
        if "@" in url:  # the error would quote the beginning of a password
            raise Unsupported(f"an address must hold no key: set the variable {API_KEY}") from None
        raise Unsupported(f"{url!r} is not an address: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise Unsupported(f"{url!r} is not an address such as http://localhost:8080")
    if parts.username is not None or parts.password is not None:
        raise Unsupported(f"an address must hold no key: set the variable {API_KEY}")
    secure = parts.scheme == "https"
    return Address(
        secure=secure,
        host=parts.hostname,
        port=(443 if secure else 80) if port is None else port,
        base=quote(parts.path, safe="/%~:@!$&'()*+,;=").rstrip("/"),
    )


def exchange(address: Address, method: str, path: str, body: Any, deadline: float) -> Any:
    """Return the JSON of the answer. `body` is None for a request without one.

    Raises StatusRefused, Closed or TimeoutError. Raises WireError for malformed or oversized JSON,
    and Unsupported for an untrusted certificate.
    """
    headers = {"Accept": "application/json", "Connection": "close"}
    if key := os.environ.get(API_KEY):
        headers["Authorization"] = f"Bearer {key}"
    raw = None
    if body is not None:
        raw = json.dumps(body, allow_nan=False).encode()
        headers["Content-Type"] = "application/json"
    with connection(address, deadline) as server:
        server.request(method, address.base + path, raw, headers)
        reply = server.getresponse()
        ok = 200 <= reply.status < 300
        said = body_of(reply, LARGEST if ok else LARGEST_ERROR, whole=ok)
        location = reply.getheader("Location")
        wait = seconds_of(reply.getheader("Retry-After"))
    if not ok:
        text = sentence_of(reply.status, said)
        if 300 <= reply.status < 400 and location:
            text += f" (Lockstep does not follow redirects; use {location[:200]})"
        raise StatusRefused(reply.status, text, wait)
    return json_of(said)


@contextmanager
def connection(address: Address, deadline: float) -> Iterator[HTTPConnection]:
    """Provide a connection that closes at the deadline, even during a wait. Errors name the
    failure."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    kind = HTTPSConnection if address.secure else HTTPConnection
    server = kind(address.host, address.port, timeout=left)
    over = threading.Event()
    timer = threading.Timer(left, cut, (server, over))
    timer.daemon = True
    timer.start()
    try:
        yield server
        if over.is_set():  # without a Content-Length, a body that was cut off looks complete
            raise TimeoutError("the deadline has passed")
    except ssl.SSLCertVerificationError as error:  # also a ValueError, but not an answer
        text = f"its certificate is not trusted: {error.verify_message}"
        raise Unsupported(f"{text} (set SSL_CERT_FILE to trust another one)") from error
    except (HTTPException, OSError, ValueError, WireError) as error:
        if over.is_set() or isinstance(error, TimeoutError):
            raise TimeoutError("the deadline has passed") from error
        if isinstance(error, WireError):
            raise
        if isinstance(error, ConnectionError) or not isinstance(error, HTTPException | ValueError):
            raise Closed(reason(error)) from error
        raise WireError(f"the answer is not HTTP: {type(error).__name__}: {error}") from error
    finally:
        timer.cancel()
        server.close()


def cut(server: HTTPConnection, over: threading.Event) -> None:
    over.set()
    with suppress(OSError, AttributeError):  # the connection is not open
        server.sock.shutdown(socket.SHUT_RDWR)


def reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "no server listens there"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def body_of(reply: HTTPResponse, most: int, *, whole: bool) -> bytes:
    """Read at most `most` bytes. If the body is longer, return only its beginning, or raise
    WireError if `whole` is True."""
    found = bytearray()
    while piece := reply.read(min(PIECE, most + 1 - len(found))):
        found += piece
        if len(found) > most:
            if whole:
                raise WireError(f"the answer is longer than {most} bytes")
            break
    if whole and reply.length:  # the announced length did not arrive
        raise WireError(f"the answer ends {reply.length} bytes too early")
    return bytes(found)


def json_of(raw: bytes) -> Any:
    """Return the parsed JSON. NaN and infinities, which some servers write, become numbers. A byte
    order mark, which .NET writes, is skipped (RFC 8259)."""
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        start = repr(raw[:80]) + ("..." if len(raw) > 80 else "")
        raise WireError(f"expected JSON, got {start}: {error}") from error


def seconds_of(said: str | None) -> float | None:
    """Return the seconds in a Retry-After header, which holds a number of seconds or a date; None
    for anything else."""
    text = (said or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])  # more digits mean a delay that is too long anyway
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def sentence_of(status: int, raw: bytes) -> str:
    """Return the server's error message, which may have any of the common forms."""
    with suppress(ValueError, RecursionError):
        said = json.loads(raw)
        for key in ("error", "message", "detail"):
            said = said.get(key, said) if isinstance(said, dict) else said
        if isinstance(said, str) and said:
            return f"HTTP {status}: {said[:500]}"
    text = raw[:200].decode(errors="replace").strip()
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"
