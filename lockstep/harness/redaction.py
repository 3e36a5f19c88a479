"""Secrets, and text without them: keys of the environment, headers, options, and addresses."""

import base64
import html
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from itertools import takewhile
from urllib.parse import quote

API_KEY = "LOCKSTEP_API_KEY"  # the variable whose value servers that want a key are sent
SECRET_VARIABLE = re.compile(r"(?:API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
REDACTED = "[redacted]"
SHORTEST_KEY_CHARACTERS = 5  # a shorter key is a placeholder such as "none": sentences contain it
SHORTEST_VALUE_CHARACTERS = 16  # of another variable: a shorter value may be any word
# A longer key is also found inside of words and where a message was cut: its first or last
# characters alone. A shorter one stands for itself.
SHORTEST_PART_CHARACTERS = 8

NAME = (
    r"(?:proxy-)?authorization|(?:set-)?cookie|x-auth-token|\w*(?:password|passwd)|"
    r"[\w-]*api[_-]?key|[\w-]*(?:client|access|secret|auth|hf)[_-](?:token|key|secret)"
)
SCHEME = r"(?:(?:bearer|basic|digest|token)\s+)?"
VALUE = r"[^\s\"',;&<>\\]+"
# what stands in front of a secret, and the secret
PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(\b(?:{NAME})\b[\\\"']*\s*[:=]\s*[\\\"']*{SCHEME}){VALUE}",
        r"(\bcookie\b[\\\"']*\s*[:=]\s*)[^\r\n\"'\\]+",
        rf"(--(?:{NAME})(?:\s+|=)[\\\"']*){VALUE}",
        # a token, and no word such as in "Bearer authentication"
        r"(\bbearer\s+)(?=[\w.~+/=-]*[\d_~+/=-])[\w.~+/=-]{4,}",
        r"(\w://)[^\s/\"'<>\\]*(?=@)",
        r"(\w://)[^\s/:@\"<>]*:(?!\d+(?:/|\b))[^\s\"<>]*(?=@)",  # a password with a slash in it
        rf"([?&]\w*(?:key|token|secret|signature)=){VALUE}",
    )
]
SUSPECT = ("://", "bearer", "authorization", "cookie", "key", "token", "secret", "passw")


def redact(text: str) -> str:
    """Return the text with each secret replaced by REDACTED; twice comes to the same as once."""
    for spelling in spellings((os.environ.get(API_KEY, "").strip(), *values_of_others())):
        text = hide(text, spelling)
    folded = text.casefold()
    if any(word in folded for word in SUSPECT):
        for pattern in PATTERNS:
            text = pattern.sub(rf"\g<1>{REDACTED}", text)
    return text


@cache
def values_of_others() -> Sequence[str]:
    """Secrets in the environment that this process was started with, apart from the API key."""
    return [
        value.strip()
        for name, value in os.environ.items()
        if name != API_KEY
        and SECRET_VARIABLE.search(name)
        and len(value.strip()) >= SHORTEST_VALUE_CHARACTERS
    ]


@lru_cache(maxsize=16)
def spellings(values: Sequence[str]) -> Sequence[str]:
    """The values as anybody may write them; the longest first, as one may contain another."""
    long = (value for value in values if len(value) >= SHORTEST_KEY_CHARACTERS)
    return sorted({each for value in long for each in spellings_of(value)}, key=len, reverse=True)


def spellings_of(value: str) -> Iterator[str]:
    """As JSON, Python, HTML, an address and a header for a password write it."""
    raw = value.encode("utf-8", "surrogateescape")
    yield value
    yield repr(value)[1:-1]
    yield repr(raw)[2:-1]
    yield value.encode("unicode_escape").decode()
    yield (quoted := json.dumps(value)[1:-1])
    yield quoted.replace("/", "\\/")
    yield html.escape(value)
    yield quote(raw, safe="")
    for shift in range(3):  # behind a user's name or the word Bearer
        shifted = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")
        yield shifted[-(-shift * 4 // 3) : len(shifted) - 1]


def hide(text: str, secret: str) -> str:
    """Return the text without the secret, and without what a cut has left of it."""
    if len(secret) < SHORTEST_PART_CHARACTERS:
        return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text)
    head, tail = secret[:SHORTEST_PART_CHARACTERS], secret[-SHORTEST_PART_CHARACTERS:]
    if tail in text[: len(secret)] and (end := text.index(tail) + len(tail)) <= len(secret):
        text = REDACTED + text[end:] if secret.endswith(text[:end]) else text
    at = text.find(head)
    while at >= 0:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(secret, text[at:], strict=False))
        end = at + len(list(same))
        text = text[:at] + REDACTED + text[end:]
        at = text.find(head, at + len(REDACTED))
    return text


class Redacted:
    """A dataclass that holds an engine's words: none of its texts shows a secret."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, str):
                object.__setattr__(self, field.name, redact(value))
            elif isinstance(value, tuple):
                object.__setattr__(self, field.name, tuple(map(redact, value)))
