"""UTF-8 as llama.cpp reads and writes it: each invalid byte becomes U+FFFD.

llama.cpp accepts more than Python: overlong forms, surrogates, and four bytes up to 0x1FFFFF.

Source: unicode_len_utf8, unicode_cpt_from_utf8, unicode_cpts_from_utf8 and unicode_cpt_to_utf8 in
src/unicode.cpp of llama-cpp-python 0.3.36.
"""

import re

from lockstep.engine.errors import EngineError

REPLACEMENT = 0xFFFD
LAST = 0x10FFFF

# number of bytes of a character, by the high half of its first byte; 1 for a stray continuation
# byte
LENGTHS = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)

SEQUENCE = re.compile(
    rb"[\x00-\x7f]|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}"
)
SEQUENCE_OR_BYTE = re.compile(SEQUENCE.pattern + rb"|[\x80-\xff]")


def code_points(text: bytes) -> list[int]:
    """Return the code points of any bytes; some may be surrogates or beyond U+10FFFF."""
    try:
        return list(map(ord, text.decode()))
    except UnicodeDecodeError:
        return list(map(_code_point, SEQUENCE_OR_BYTE.findall(text)))


def writable_code_points(text: bytes) -> list[int]:
    """Return the code points of a text that will be encoded as UTF-8 again.

    Raises EngineError if one is beyond U+10FFFF, where llama.cpp aborts.
    """
    codes = code_points(text)
    if codes and max(codes) > LAST:
        raise EngineError(
            f"the text must hold code points up to U+10FFFF, but it encodes {max(codes):#x}"
        )
    return codes


def to_utf8(code: int) -> bytes:
    """Return the UTF-8 bytes of a code point, also for surrogates and code points up to
    0x1FFFFF."""
    if code < 0x80:
        return bytes([code])
    size = 2 + (code >= 0x800) + (code >= 0x10000)
    first = (0xF00 >> size) & 0xFF | code >> 6 * (size - 1)
    return bytes([first, *(0x80 | code >> 6 * i & 0x3F for i in range(size - 2, -1, -1))])


def sequence_size(text: bytes, at: int) -> int:
    """Return the number of bytes of the character that begins at `at`; 0 if no character begins
    there.
    """
    match = SEQUENCE.match(text, at)
    return match.end() - at if match else 0


def _code_point(sequence: bytes) -> int:
    if len(sequence) == 1:
        return sequence[0] if sequence[0] < 0x80 else REPLACEMENT
    code = sequence[0] & 0x7F >> len(sequence)
    for byte in sequence[1:]:
        code = code << 6 | byte & 0x3F
    return code
