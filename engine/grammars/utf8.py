"""UTF-8 characters that are read byte by byte, and may be cut between two tokens."""

from typing import NamedTuple


class Half(NamedTuple):
    """A partly read character: its bits so far, and the number of missing bytes (0: no
    character)."""

    value: int = 0
    missing: int = 0


WHOLE = Half()
CARRIED = 8  # added to `missing` if the character began in an earlier token
LEADS = ((0xC2, 0xE0, 0x1F, 1), (0xE0, 0xF0, 0x0F, 2), (0xF0, 0xF5, 0x07, 3))
ANY_LEADS = ((0xC0, 0xE0, 0x1F, 1), (0xE0, 0xF0, 0x0F, 2), (0xF0, 0x100, 0x0F, 3))
# least code points, by the number of bytes that follow a first byte without code bits
LEAST = {2: 0x800, 3: 0x10000}
LAST_POINT, BEFORE_SURROGATES, AFTER_SURROGATES = 0x10FFFF, 0xD7FF, 0xE000


def span_of(half: Half) -> tuple[int, int]:
    """Return the first and the last character that the partial character can become."""
    value, missing = half
    bits = 6 * missing
    low, high = value << bits, ((value + 1) << bits) - 1
    low = max(low, LEAST.get(missing, 0) if value == 0 else 0)
    if low <= BEFORE_SURROGATES < high:
        high = BEFORE_SURROGATES
    return low, min(high, LAST_POINT)


def add_byte(half: Half, byte: int) -> Half | int | None:
    """Return the partial character plus one byte: a Half, a code point, or None if invalid."""
    value, missing = half
    if not missing:
        if byte < 0x80:
            return byte
        for low, end, mask, more in LEADS:
            if low <= byte < end:
                return Half(byte & mask, more)
        return None
    if byte >> 6 != 2:
        return None
    found = Half(value << 6 | byte & 0x3F, missing - 1)
    low, high = span_of(half)
    first, last = found.value << 6 * found.missing, (found.value + 1 << 6 * found.missing) - 1
    if last < low or first > high:
        return None
    return found if found.missing else found.value


def add_any_byte(half: Half, byte: int) -> Half | int | None:
    """Add a byte as llama.cpp does: within a token any byte is accepted, and lengths go unchecked.

    A character from an earlier token needs a continuation byte.
    """
    value, missing = half
    if not missing:
        if byte < 0x80:
            return byte
        for low, end, mask, more in ANY_LEADS:
            if low <= byte < end:
                return Half(byte & mask, more)
        return None
    if missing >= CARRIED and byte >> 6 != 2:
        return None
    missing -= 1
    found = (value << 6) + (byte & 0x3F)
    return Half(found, missing) if missing % CARRIED else found


def any_span_of(half: Half) -> tuple[int, int]:
    """Return llama.cpp's span of the partial character; an empty span if llama.cpp finds the
    character too long.
    """
    value, missing = half.value, half.missing % CARRIED
    if missing == 1 and value < 2:
        return 1, 0
    low = value << 6 * missing
    return low or LEAST.get(missing, 0), low | (1 << 6 * missing) - 1
