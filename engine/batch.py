"""A batch of tokens, and the ways to split it into the ubatches that are computed together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens with their place: one entry per token in every array."""

    tokens: I32
    positions: I32
    seq_ids: I32
    outputs: NDArray[np.bool_]  # whose logits are asked for

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, tokens: Sequence[int], start: int = 0, seq_id: int = 0) -> "Batch":
        """Consecutive tokens of one sequence from position `start`, with logits for each."""
        n = len(tokens)
        return cls(
            tokens=np.array(tokens, np.int32),
            positions=np.arange(start, start + n, dtype=np.int32),
            seq_ids=np.full(n, seq_id, np.int32),
            outputs=np.ones(n, np.bool_),
        )

    def split_simple(self, n_ubatch: int) -> Iterator["Batch"]:
        """Runs of at most `n_ubatch` tokens in the order given."""
        for at in range(0, len(self), n_ubatch):
            part = slice(at, at + n_ubatch)
            yield Batch(
                self.tokens[part], self.positions[part], self.seq_ids[part], self.outputs[part]
            )
