"""Invalid UTF-8: the forms in which engines show and read it.

Unicode only says that such bytes are not characters. Most programs show U+FFFD instead.
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
    """Return the forms in which engines show invalid UTF-8. No form is prescribed.

    U+FFFD stands for each incomplete character (Python, Rust, JavaScript), for each byte (Go's
    runes, and Go's JSON), or for each run of invalid bytes (Go's ToValidUTF8).
    """
    if is_utf8(text):
        return {text}
    every = text.decode("utf-8", "surrogateescape")  # a lone surrogate stands for each invalid byte
    return {
        text.decode("utf-8", "replace").encode(),
        re.sub("[\udc80-\udcff]", "\ufffd", every).encode(),
        re.sub("[\udc80-\udcff]+", "\ufffd", every).encode(),
    }


def read_alike(
    texts: Sequence[bytes], said: Sequence[Sequence[int]], answer: Sequence[Sequence[int]]
) -> Iterator[bool]:
    """Yield for each text True if its ids are right, else False. The ids of the text with U+FFFD
    for invalid bytes are right too, if the right answer itself has U+FFFD for an invalid byte.
    said: the ids to judge; answer: the right ids."""
    rows = {text: list(ids) for text, ids in zip(texts, answer, strict=True)}
    replaces = rows.get(b"\xff", []) == rows.get("\ufffd".encode())
    for text, ids in zip(texts, said, strict=True):
        ways = shown_as(text) if replaces else ()
        yield list(ids) == rows[text] or any(list(ids) == rows.get(way) for way in ways)
