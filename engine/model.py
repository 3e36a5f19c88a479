"""A model file, opened: its graph, its cache and its tokenizer, behind a handful of calls."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.architectures.base import Architecture
from engine.architectures.step import Step
from engine.batch import Batch
from engine.errors import InvalidModel
from engine.gguf_file import GgufFile
from engine.hparams import architecture_name
from engine.kv_cache import KvCache
from engine.ops.reference import Reference
from engine.quants.base import F32
from engine.sampling import greedy
from engine.tokenizers.base import Tokenizer, tokenizer_of
from engine.trace import Probe, silent

LARGE = 1 << 28  # bytes of a file from which its pages are given back after each batch


def architecture_of(file: GgufFile) -> type[Architecture]:
    return Architecture.named(architecture_name(file.metadata))


class Model:
    """One file with one way of computing (`ops`) and one kind of cache."""

    def __init__(
        self,
        path: Path,
        ops: Reference,
        *,
        type_k: str = "F32",
        type_v: str = "F32",
        flash_attn: bool = False,
        n_ctx: int = 512,
        n_ubatch: int = 512,
    ) -> None:
        self.file = GgufFile.open(path)
        self.graph = architecture_of(self.file)(self.file)
        self.ops = ops
        self.type_k, self.type_v = type_k, type_v
        self.flash_attn = flash_attn
        self.n_ctx, self.n_ubatch = n_ctx, n_ubatch

    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.file.metadata)

    def new_cache(self) -> KvCache:
        return self.graph.new_cache(n_ctx=self.n_ctx, type_k=self.type_k, type_v=self.type_v)

    def decode(
        self,
        batch: Batch,
        cache: KvCache,
        probe: Probe = silent,
        *,
        ops: Reference | None = None,
    ) -> list[F32]:
        """One (outputs, vocabulary) array for each ubatch that the batch is split into; of
        embeddings one (tokens or sequences, width).

        ops: another way of computing than the model's own, for this batch.
        """
        n_vocab = self.graph.hparams.n_vocab
        if len(batch) and not (batch.tokens.min() >= 0 and batch.tokens.max() < n_vocab):
            raise InvalidModel(f"a token id is outside 0..{n_vocab - 1}: {batch.tokens.tolist()}")
        if self.graph.embeds and len(batch) > self.n_ubatch:
            raise InvalidModel(f"{len(batch)} tokens at once, and a ubatch holds {self.n_ubatch}")
        ops = ops or self.ops
        with np.errstate(all="ignore"):  # numbers that overflow are the model's own, and an answer
            logits = [
                self.step(ubatch, cache, ops, probe) for ubatch in batch.split_simple(self.n_ubatch)
            ]
        if self.file.size > LARGE:
            self.file.release()  # or every open model would count the whole file as its memory
        return logits

    def compute(self, ubatch: Batch, cache: KvCache) -> F32:
        """One ubatch whose cells are already given: (outputs, vocabulary)."""
        with np.errstate(all="ignore"):
            return self.step(ubatch, cache, self.ops, silent)

    def step(self, ubatch: Batch, cache: KvCache, ops: Reference, probe: Probe) -> F32:
        return self.graph.forward(Step.of(ubatch, cache, ops, probe, flash_attn=self.flash_attn))

    def rotate(self, keys: F32, deltas: NDArray[np.int32]) -> F32:
        """Keys as they lie in a cache, moved by so many positions: (cells, kv_heads, dim)."""
        params = self.graph.rope_params()
        if params is None:  # keys without a rotation are the same at every position
            return keys
        return self.ops.rope(keys.astype(np.float32), deltas, params)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """`n` tokens after the prompt; an end-of-text token does not stop it."""
        cache = self.new_cache()
        last = self.decode(Batch.of(prompt), cache)[-1][-1]
        ids: list[int] = []
        while len(ids) < n:
            ids.append(greedy(last))
            if len(ids) < n:
                at = len(prompt) + len(ids) - 1
                last = self.decode(Batch.of(ids[-1:], start=at), cache)[-1][-1]
        return ids

    def close(self) -> None:
        self.file.close()
