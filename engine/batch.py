"""A batch of tokens of one or more sequences, and the batches of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens with their positions and sequences: every array has one entry per token."""

    tokens: I32
    positions: I32
    seq_ids: I32
    outputs: NDArray[np.bool_]  # True for tokens whose logits are requested
    # True: for the encoder of a model that also has a decoder; gives no logits
    encoder: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, tokens: Sequence[int], start: int = 0, seq_id: int = 0) -> "Batch":
        """Return consecutive tokens of one sequence from position `start`, with logits for each."""
        n = len(tokens)
        return cls(
            tokens=np.array(tokens, np.int32),
            positions=np.arange(start, start + n, dtype=np.int32),
            seq_ids=np.full(n, seq_id, np.int32),
            outputs=np.ones(n, np.bool_),
        )

    @classmethod
    def for_next(cls, tokens: Sequence[int]) -> "Batch":
        """Return the batch of a prompt, with logits for the last token only."""
        batch = cls.of(tokens)
        batch.outputs[:-1] = False
        return batch

    @classmethod
    def to_encode(cls, batch: "Batch") -> "Batch":
        """Return the batch for the encoder; later batches read its result."""
        none = np.zeros(len(batch), np.bool_)
        return cls(batch.tokens, batch.positions, batch.seq_ids, none, encoder=True)


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Join all tokens of the batches in one batch."""
    return Batch(
        tokens=np.concatenate([batch.tokens for batch in batches]),
        positions=np.concatenate([batch.positions for batch in batches]),
        seq_ids=np.concatenate([batch.seq_ids for batch in batches]),
        outputs=np.concatenate([batch.outputs for batch in batches]),
    )


def encoded_first(batches: Sequence[Batch], both: bool) -> tuple[Batch, ...]:
    """Return the batches. If the model has an encoder and a decoder (`both`), an encoder batch of
    the prompt comes first."""
    return (Batch.to_encode(batches[0]), *batches) if both else tuple(batches)


def steps_of(
    prompt: Sequence[int], ids: Sequence[int], decoder_start: int | None = None
) -> tuple[Batch, ...]:
    """Return the batch of the prompt, then one batch for every id except the last (no logits
    needed).

    decoder_start: the first token of the decoder, for a model whose encoder reads the prompt.
    """
    first = Batch.of(prompt if decoder_start is None else [decoder_start])
    steps = [Batch.of([token], start=len(first) + i) for i, token in enumerate(ids[:-1])]
    if decoder_start is None:
        return (first, *steps)
    return (Batch.to_encode(Batch.of(prompt)), first, *steps)
