"""Text in Markdown without any markup: tokens, metadata and file names are untrusted."""

import re
from string import punctuation

MARKUP = set(punctuation) - set("-,.()")  # characters with a meaning in a line of GitHub's Markdown


def as_cell(text: str) -> str:
    """Return the text escaped for a table cell or a line. The entities prevent markup, links,
    mentions, and the end of a cell."""
    shown = "".join(f"&#{ord(c)};" if c in MARKUP else c for c in text)
    return shown.replace("www.", "www&#46;")


def as_code(text: str) -> str:
    """Return the text as inline code, without markup inside. Do not use it in tables, because a
    cell ends at any `|`."""
    fence = "`" * (longest_run(text) + 1)
    apart = " " if text[:1] in ("`", " ") or text[-1:] in ("`", " ") else ""
    return f"{fence}{apart}{text}{apart}{fence}"


def as_block(text: str) -> str:
    """Return the text as a code block."""
    fence = "`" * max(3, longest_run(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
