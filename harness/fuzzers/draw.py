"""The numbers that decide a case of a fuzzer, drawn one after the other."""

from typing import Protocol


class Draw(Protocol):
    def below(self, n: int) -> int:
        """Return a whole number in 0..n-1."""
