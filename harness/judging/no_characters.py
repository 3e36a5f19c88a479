"""Invalid UTF-8: the forms in which engines show and read it.

Unicode prescribes only that they are no characters; most programs put U+FFFD there.
"""

import re
from collections.abc import Iterator, Sequence


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def shown_as(text: bytes) -> set[bytes]:
    """Return the forms in which invalid UTF-8 is shown; none is prescribed.

    U+FFFD stands for every beginning of a character (Python, Rust, JavaScript), for every byte
    (Go's runes, and its JSON), or for all that stand together (Go's ToValidUTF8).
    """
    if is_utf8(text):
        return {text}
    every = text.decode("utf-8", "surrogateescape")  # a lone surrogate for each such byte
    return {
        text.decode("utf-8", "replace").encode(),
        re.sub("[\udc80-\udcff]", "\ufffd", every).encode(),
        re.sub("[\udc80-\udcff]+", "\ufffd", every).encode(),
    }


def read_alike(
    texts: Sequence[bytes], said: Sequence[Sequence[int]], answer: Sequence[Sequence[int]]
) -> Iterator[bool]:
    """Yield for each text whether its ids are right, or those of the text with U+FFFD; the latter
    only if the right answer has U+FFFD for an invalid byte."""
    rows = {text: list(ids) for text, ids in zip(texts, answer, strict=True)}
    replaces = rows.get(b"\xff", []) == rows.get("\ufffd".encode())
    for text, ids in zip(texts, said, strict=True):
        ways = shown_as(text) if replaces else ()
        yield list(ids) == rows[text] or any(list(ids) == rows.get(way) for way in ways)
