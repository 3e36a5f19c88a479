"""Parts that all kinds of servers share: reading answers from JSON, and facts about a server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.records import EngineInfo

Ask = Callable[..., Any]  # arguments: method, path, body=None; returns JSON


@dataclass(frozen=True, kw_only=True)
class About:
    """A server's facts about itself and its model."""

    version: str
    build: str
    levels: tuple[str, ...]
    text_only: bool = False
    chat_only: bool = False
    facts: tuple[tuple[str, Any], ...] = ()  # facts about the model, by name
    path: str = ""  # path of the model's file on the server's machine


class Complaint(MalformedAnswer):
    """Error: an answer with a success status contains an error message."""


class Server(Protocol):
    """A kind of server. Its methods have the adapter's names. Questions outside its `levels` are
    never asked."""

    def about(self, ask: Ask) -> About: ...


def member(said: Any, *path: str | int) -> Any:
    """Return the value at the path. Raises MalformedAnswer or Complaint, which name the first
    missing step of the path."""
    where = "the answer"
    for step in path:
        if isinstance(step, int):
            if type(said) is not list or step >= len(said):
                raise MalformedAnswer(where, f"a list with an item {step}", said)
        elif type(said) is not dict or step not in said:
            words = complaint(said)
            kind = MalformedAnswer if words is said else Complaint
            raise kind(where, f"an object with {step!r}", words)
        said = said[step]
        where = f"{where}[{step!r}]"
    return said


def complaint(said: Any) -> Any:
    """Return the error message in an answer; else the answer itself. Some servers send errors with
    a success status."""
    found = said.get("error") if type(said) is dict else None
    words = found.get("message") if type(found) is dict else found
    return f"error: {words}" if type(words) is str else said


def text(said: Any, *path: str | int) -> str:
    found = member(said, *path)
    if type(found) is not str:
        raise MalformedAnswer(f"{path[-1]!r}", "a text", found)
    return found


def as_bytes(said: str) -> bytes:
    """Return the text as UTF-8 bytes. A lone half of a surrogate pair is replaced, because it is no
    character."""
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def number(said: Any) -> float:
    """Return a number. `null` becomes NaN, because JSON writers use it for NaN and infinities.
    Raises MalformedAnswer for other values."""
    if said is None:
        return nan
    if type(said) not in (int, float):
        raise MalformedAnswer("a log-probability", "a number", said)
    try:
        return float(said)
    except OverflowError:  # JSON allows integers of any size
        raise MalformedAnswer("a log-probability", "a number of float64", said) from None


def candidates(rows: Any) -> list[tuple[int | bytes, float]]:
    """Return candidates with their log-probabilities, from objects with `id`, `bytes` or
    `token`."""
    if type(rows) is not list:
        raise MalformedAnswer("the candidates", "a list", rows)
    return [(token_of(row), number(member(row, "logprob"))) for row in rows]


def token_of(row: Any) -> int | bytes:
    if type(row) is dict and type(row.get("id")) is int:
        return int(row["id"])
    raw = row.get("bytes") if type(row) is dict else None
    if type(raw) is list and raw and all(type(b) is int and 0 <= b < 256 for b in raw):
        return bytes(raw)
    return as_bytes(text(row, "token"))


def one_way(
    rows: list[tuple[int | bytes, float]],
) -> list[tuple[int | bytes, float]]:
    """Return the rows unchanged. Raises MalformedAnswer if some tokens are ids and others are
    texts."""
    if len({type(token) for token, _ in rows}) > 1:
        raise MalformedAnswer("the candidates", "all with ids, or none", rows)
    return rows


def info_of(name: str, about: About, **more: Any) -> EngineInfo:
    return EngineInfo(
        engine=name,
        version=about.version,
        build=about.build,
        shows=(),
        levels=about.levels,
        text_only=about.text_only,
        chat_only=about.chat_only,
        utf8_only=True,
        **more,
    )


def utf8(texts: Sequence[bytes]) -> list[str]:
    return [each.decode() for each in texts]
