"""Comparison of one engine's answer with another engine's answer, row by row or token by token."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """The comparison of each row of an answer.

    apart: squared distances; 0 or 1 for rows without a distance. not_compared: the number of tokens
    that cannot be judged, after a tie or in half a character. ties: the number of tokens in a tie
    that the engine may choose but does not choose. moved: squared distances of the engine's rows of
    logits from the right rows.
    """

    same: NDArray[np.bool_]
    apart: NDArray[np.float64]
    not_compared: int = 0
    ties: int = 0
    moved: NDArray[np.float64] | None = None

    @classmethod
    def exactly(cls, same: Iterable[bool], not_compared: int = 0, ties: int = 0) -> "Compared":
        found = np.fromiter(same, np.bool_)
        apart = (~found).astype(np.float64)
        return cls(same=found, apart=apart, not_compared=not_compared, ties=ties)

    @property
    def chosen(self) -> int:
        """Return the number of equal tokens that the engine itself chooses, without ties."""
        return int(self.same.sum()) - self.ties
