"""Comparisons of `lockstep check`, one file per suite. To add one: copy `tokens.py`."""
