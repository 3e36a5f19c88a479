"""The list that samplers work on: token ids with logits and probabilities."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

F = np.float32
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Number = float | np.float32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CandidateList:
    """Tokens that may come next. p: the result of the last softmax; other samplers do not update
    p."""

    ids: I32  # (candidates,)
    logits: F32  # (candidates,)
    p: F32  # (candidates,)
    sorted: bool = False  # True: by logits, the largest first
    selected: int = -1  # index in the list; -1: none

    @classmethod
    def of_logits(cls, logits: F32) -> Self:
        """Return a list of the whole vocabulary in the order of ids. logits: (vocabulary,)"""
        n = len(logits)
        return cls(ids=np.arange(n, dtype=np.int32), logits=np.array(logits, F), p=np.zeros(n, F))

    def take(self, order: Any, **changes: Any) -> "CandidateList":
        """Return the candidates at these indices, in this order."""
        kept = {name: getattr(self, name)[order] for name in ("ids", "logits", "p")}
        return replace(self, **{**kept, **changes})

    def change(self, **changes: Any) -> "CandidateList":
        return replace(self, **changes)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def token(self) -> int:
        """Return the id of the selected candidate; -1: none."""
        return int(self.ids[self.selected]) if 0 <= self.selected < len(self) else -1
