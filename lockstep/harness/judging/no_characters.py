"""Bytes that are no characters: what engines show for them, and read in their place.

Unicode prescribes only that they are no characters; most programs put U+FFFD there.
"""

import re


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def shown_as(text: bytes) -> set[bytes]:
    """Each way in which they are shown, which nobody prescribes: U+FFFD for every beginning of a
    character (Python, Rust, JavaScript), for every byte (Go's runes, and its JSON), or for all
    that stand together (Go's ToValidUTF8)."""
    if is_utf8(text):
        return {text}
    every = text.decode("utf-8", "surrogateescape")  # a lone surrogate for each such byte
    return {
        text.decode("utf-8", "replace").encode(),
        re.sub("[\udc80-\udcff]", "\ufffd", every).encode(),
        re.sub("[\udc80-\udcff]+", "\ufffd", every).encode(),
    }
