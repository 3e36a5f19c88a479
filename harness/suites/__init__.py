"""Comparisons of `lockstep check`, one file per suite. To add a suite, copy `tokens.py`."""
