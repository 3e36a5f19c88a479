"""Batches of a model: a prompt, then batches that read the cache."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Philox

from lockstep.engine.batch import Batch, encoded_first
from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.asking.facts import has_both

SECOND = 3  # tokens of the second batch, which is neither a prompt nor a single token


@dataclass(frozen=True, kw_only=True)
class Work:
    """An amount of work. `tokens` is the length of the prompt, `batches` the number of batches
    after it, and `sequences` the number of sequences in every batch."""

    tokens: int = 16
    batches: int = 2
    sequences: int = 1

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens of a sequence in each batch."""
        return [self.tokens, SECOND, *[1] * self.batches][: 1 + self.batches]

    @property
    def cells(self) -> int:
        return sum(self.lengths) * self.sequences


def batches_of(work: Work, seed: int, file: GgufFile) -> tuple[Batch, ...]:
    """Return batches of seeded ids from the whole vocabulary. Each batch holds one sequence after
    the other. If the model has an encoder, the encoder reads the prompt first."""
    embeddings = file.tensors.get("token_embd.weight")
    if embeddings is None:
        raise EngineError("the model has no token_embd.weight, so its vocabulary is unknown")
    raw = Philox(key=seed).random_raw(work.cells) >> np.uint64(33)
    ids = iter((raw % np.uint64(embeddings.shape[0])).tolist())
    made, start = [], 0
    for n in work.lengths:
        parts = [
            Batch.of([next(ids) for _ in range(n)], start=start, seq_id=s)
            for s in range(work.sequences)
        ]
        made.append(join_batches(parts))
        start += n
    return encoded_first(made, has_both(file.tensors))


def join_batches(parts: list[Batch]) -> Batch:
    return Batch(
        tokens=np.concatenate([part.tokens for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
        seq_ids=np.concatenate([part.seq_ids for part in parts]),
        outputs=np.concatenate([part.outputs for part in parts]),
    )
