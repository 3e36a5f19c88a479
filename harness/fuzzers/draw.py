"""The interface to draw the random numbers of a fuzzer's case, one after the other."""

from typing import Protocol


class Draw(Protocol):
    def below(self, n: int) -> int:
        """Return an integer from 0 to n-1."""
