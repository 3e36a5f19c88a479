"""Suggestions for an unknown name, to end an error message."""

from collections.abc import Iterable
from difflib import get_close_matches

# names that are all listed, enough for the suites of `check`; of more names, only the nearest are
ALL = 17
NEAREST = 5
ALIKE = 0.3  # least ratio of difflib, so that a short name without one letter is still near


def choices(name: str, known: Iterable[str]) -> str:
    """Return known names as `(known: a, b)`, or for many `(near: a, b; 400 in all)`."""
    every = list(dict.fromkeys(known))
    if len(every) <= ALL:
        return f"(known: {', '.join(every) or 'none'})"
    lower = {each.lower(): each for each in every}
    near = [lower[each] for each in get_close_matches(name.lower(), lower, NEAREST, ALIKE)]
    return f"(near: {', '.join(near) or 'none'}; {len(every)} in all)"
