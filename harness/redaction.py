"""Finds secrets and removes them from texts: keys in the environment, headers, options, and
addresses."""

import base64
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from itertools import takewhile
from urllib.parse import quote

API_KEY = "LOCKSTEP_API_KEY"  # variable with the key that is sent to servers
SECRET_VARIABLE = re.compile(
    r"(?:^|_)(?:\w*KEY(?:_ID)?|\w*TOKEN|\w*SECRET|\w*PASSWORD|PASS|PASSWD|PASSPHRASE|\w+_PWD|PAT|JWT"
    r"|AUTH|BEARER|COOKIE|CREDENTIALS?|DSN|WEBHOOK)$",
    re.IGNORECASE,
)
# an address with a password, in the value of any variable
PASSWORD_IN_ADDRESS = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
REDACTED = "[redacted]"
# a shorter key is a placeholder such as "none", which sentences contain
SHORTEST_KEY_CHARACTERS = 5
SHORTEST_VALUE_CHARACTERS = 16  # limit for other variables, because a shorter value may be any word
# Longer keys are also found within words, and where a message was cut, by their first or last
# characters. Shorter keys are found only as a whole.
SHORTEST_PART_CHARACTERS = 8

NAME = (
    r"(?:proxy-)?authorization|(?:set-)?cookie|x-auth-token|\w*(?:password|passwd|passphrase)|"
    r"[\w-]*api[_-]?key|[\w-]*(?:client|access|secret|auth|hf|private|signing)[_-](?:token|key|secret)"
)
# an option, or the variable of `env NAME=VALUE COMMAND`; in a sentence these are ordinary words
OPTION_NAME = rf"{NAME}|[\w-]*(?:token|secret|[_-]key|key|credentials?)|pass|pat|bearer"
VARIABLE = r"(?-i:\b[A-Z][A-Z0-9_]*(?:TOKEN|SECRET|KEY|PASSWORD)=)"
OPTION = rf"(?:--(?:{OPTION_NAME})(?:\s+|=)|{VARIABLE})[\\\"']*"
SCHEME = r"(?:(?:bearer|basic|digest|token)\s+)?"
VALUE = r"[^\s\"',;&<>\\]+"
# text before a secret, and the secret
PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(\b(?:{NAME})\b[\\\"']*\s*[:=]\s*[\\\"']*{SCHEME}){VALUE}",
        r"(\bcookie\b[\\\"']*\s*[:=]\s*)[^\r\n\"'\\]+",
        rf"({OPTION}){VALUE}",
        # a token, but not a word as in "Bearer authentication"
        r"(\bbearer\s+)(?=[\w.~+/=-]*[\d_~+/=-])[\w.~+/=-]{4,}",
        r"(\w://?|//)[^\s/\"'<>\\]*(?=@)",  # a path may have one slash where the address had two
        # a password that contains a slash
        r"(\w://?|//)[^\s/:@\"<>]*:(?!\d+(?:/|\b))[^\s\"<>]*(?=@)",
        rf"([?&]\w*(?:key|token|secret|signature)=){VALUE}",
    )
]
SUSPECT = ("@", "://", "bearer", "authorization", "cookie", "key", "token", "secret", "passw")


def redact(text: str) -> str:
    """Return the text with each secret replaced by REDACTED. A second call changes nothing."""
    keys = os.environ.get(API_KEY, "").split("\n")
    text = hide(text, spellings((*map(str.strip, keys), *values_of_others(), *GIVEN)))
    folded = text.casefold()
    if any(word in folded for word in SUSPECT):
        for pattern in PATTERNS:
            text = pattern.sub(rf"\g<1>{REDACTED}", text)
    return text


GIVEN: dict[str, None] = {}  # secrets of the command line, in the order of their options


def keep_secret_options(words: Iterable[str]) -> None:
    """Remember the values of options that hold secrets, because an engine may print them without
    the option's name."""
    for _, value in re.findall(rf"({OPTION})({VALUE})", " ".join(words), re.IGNORECASE):
        if len(value) >= SHORTEST_PART_CHARACTERS:
            GIVEN[value] = None


@cache
def values_of_others() -> Sequence[str]:
    """Return the secrets in this process's initial environment, except for the API key."""
    others = {name: value.strip() for name, value in os.environ.items() if name != API_KEY}
    secret = [value for name, value in others.items() if SECRET_VARIABLE.search(name)]
    in_addresses = [p for value in others.values() for p in PASSWORD_IN_ADDRESS.findall(value)]
    long = [value for value in secret if len(value) >= SHORTEST_VALUE_CHARACTERS]
    return long + [p for p in in_addresses if len(p) >= SHORTEST_PART_CHARACTERS]


@lru_cache(maxsize=16)
def spellings(values: Sequence[str]) -> Sequence[tuple[str, int]]:
    """Return the spellings of the values, and the number of characters that identifies each. The
    longest come first, because one may contain another."""
    long = (value for value in values if len(value) >= SHORTEST_KEY_CHARACTERS)
    found = {
        (each, -(-SHORTEST_PART_CHARACTERS * len(each) // len(value)))
        for value in long
        for each in spellings_of(value)
    }
    return sorted(found, key=lambda pair: len(pair[0]), reverse=True)


def spellings_of(value: str) -> Iterator[str]:
    """Yield the value as it is written in JSON, Python, HTML, a URL, and a header with a
    password."""
    raw = value.encode("utf-8", "surrogateescape")
    yield value
    yield repr(value)[1:-1]
    yield repr(raw)[2:-1]
    yield value.encode("unicode_escape").decode()
    yield (quoted := json.dumps(value)[1:-1])
    yield quoted.replace("/", "\\/")
    yield html.escape(value)
    yield quote(raw, safe="")
    yield raw.hex()
    yield raw.hex().upper()
    yield "".join(f"%{byte:02X}" for byte in raw)
    yield "".join(f"\\u{ord(character):04x}" for character in value)
    yield "".join(f"&#{ord(character)};" for character in value)
    for shift in range(3):  # the secret may follow a user's name or the word Bearer
        shifted = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")
        yield shifted[-(-shift * 4 // 3) : len(shifted) - 1]


def hide(text: str, secrets: Sequence[tuple[str, int]]) -> str:
    """Return the text without the secrets. Beginnings and ends of truncated secrets are removed
    too.

    `secrets` holds each secret with the number of its characters that identifies it.
    """
    found: list[tuple[int, int]] = []
    for secret, _ in secrets:
        if len(secret) < SHORTEST_PART_CHARACTERS:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text)
    n, backwards = len(text), text[::-1]
    for secret, part in secrets:
        if len(secret) >= SHORTEST_PART_CHARACTERS:
            found += beginnings_in(text, secret, part)
            ends = beginnings_in(backwards, secret[::-1], part)
            found += [(n - stop, n - start) for start, stop in ends]
    shown, at = "", 0
    for start, stop in sorted(found):
        shown += text[at:start] + REDACTED if start >= at else ""
        at = max(at, stop)
    return shown + text[at:]


def beginnings_in(text: str, secret: str, part: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each place where the text contains a beginning of the
    secret."""
    start = text.find(secret[:part])
    while start >= 0:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(secret, text[start:], strict=False))
        stop = start + len(list(same))
        yield start, stop
        start = text.find(secret[:part], stop)


class Redacted:
    """A dataclass with an engine's texts, from which secrets are removed."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, str):
                object.__setattr__(self, field.name, redact(value))
            elif isinstance(value, tuple):
                object.__setattr__(self, field.name, tuple(map(redact, value)))
