"""Texts of models, tokens and engines on a page: escaped, cut, and with their length."""

import json
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from lockstep.harness.report.text import printable

LONGEST = 2000  # characters of one text; a token may have megabytes
LONGEST_BLOCK = 20_000  # characters of a dump or a log
PATH = re.compile(r"[MVHhz0-9. -]*")
NAME = 120  # characters of a text within a line


def show_value(value: Any, longest: int = LONGEST) -> str:
    """Return any value in readable form. Control and bidirectional characters are written as
    escapes."""
    if isinstance(value, float):
        return number(value)
    text = printable(cut(str(value), longest), keep="\n")
    return text.encode(errors="backslashreplace").decode()  # JSON may contain lone surrogates


def cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]} ... (cut: {len(text):,} characters)"


def finalize(value: Any) -> Any:
    """Convert the value of a template expression before the value is escaped. Markup from macros
    stays unchanged."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else show_value(value)


def short_name(value: Any) -> str:
    return show_value(value, NAME)


def paths(text: str) -> Markup:
    """Mark a drawn SVG path as safe. It may be long, but it holds only numbers and letters."""
    if not PATH.fullmatch(text):
        raise ValueError(f"not a path: {text[:40]!r}")
    return Markup(text)


def long(text: Any) -> Markup:
    """Return a text escaped and uncut, for texts that are long on purpose."""
    return escape(show_value(text, LONGEST_BLOCK))


def whole(text: str) -> Markup:
    """Return an address escaped and uncut, because a cut address does not work."""
    return escape(text)


def number(value: Any) -> str:
    """Format a number with three significant digits. "inf" and "nan" remain as in the report."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return show_value(value, NAME)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def exact(value: Any) -> str:
    """Format a float32 with every digit."""
    return f"{value:.9g}" if isinstance(value, float) else show_value(value, NAME)


def of_limit(share: Any, limit: str = "its limit") -> str:
    """Describe an error, as `17% of its limit`, or `3e+05 times its limit`."""
    if not isinstance(share, int | float):
        return f"{show_value(share, NAME)} times {limit}"
    return f"{share:.0%} of {limit}" if share < 100 else f"{share:.2g} times {limit}"


def data_block(value: Any) -> Markup:
    """Return JSON for a script element, escaped so that no text can end the element or open a
    comment."""
    text = json.dumps(plain(value), separators=(",", ":"), ensure_ascii=True)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {short_name(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return show_value(value) if isinstance(value, str) else value
