"""An opened model file: its graph, memory and tokenizer, used through a few calls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.adapters.control_vector import read_directions, steer
from lockstep.engine.adapters.lora import Lora
from lockstep.engine.adapters.ops import LoraOps
from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.step import Step
from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.hparams import architecture_name
from lockstep.engine.memory.base import LayerView, Memory
from lockstep.engine.memory.decode import decode, entries_of
from lockstep.engine.memory.kinds import memory_of
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.engine.sampling import greedy
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.trace import Probe, silent

N_SEQ_MAX = 256  # number of sequences in a memory: LLAMA_MAX_SEQ in llama-cparams.h of 0.3.36
LARGE = 1 << 28  # size of a file in bytes from which pages are released after use


def architecture_of(file: GgufFile) -> type[Architecture]:
    return Architecture.member(architecture_name(file.metadata))


class Model:
    """Model in one file, with one set of ops and one kind of memory."""

    # True: pages of the file stay in memory between runs, unless the system needs the memory
    keeps_pages = False

    def __init__(
        self,
        path: Path,
        ops: ReferenceOps,
        *,
        type_k: str = "F32",
        type_v: str = "F32",
        flash_attn: bool = False,
        n_ctx: int = 512,
        n_ubatch: int = 512,
        loras: Sequence[tuple[Path, float]] = (),
        control_vectors: Sequence[tuple[Path, float]] = (),
    ) -> None:
        """Open a model.

        loras, control_vectors: paths with scales. Raises EngineError or OSError.
        """
        self.file = open_model(path)
        self.graph = architecture_of(self.file)(self.file, n_ctx)
        self.ops = ops
        self.type_k, self.type_v = type_k, type_v
        self.flash_attn = flash_attn
        self.n_ctx, self.n_ubatch = n_ctx, n_ubatch
        hparams = self.graph.hparams
        self.lora = Lora(loras, self.file) if loras else None
        self.directions = read_directions(
            control_vectors, n_layer=hparams.n_layer, width=hparams.n_embd
        )

    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.file.metadata)

    def new_memory(
        self,
        *,
        size: int | None = None,
        n_seq: int = N_SEQ_MAX,
        unified: bool = True,
        n_ubatch: int | None = None,
    ) -> Memory:
        """Return a memory. All sequences share its cells if `unified`; else each sequence has its
        own stream.

        size: cells of a stream; default n_ctx. n_ubatch: size of ubatches, for which the cache of a
        window needs cells.
        """
        graph = self.graph
        return memory_of(
            [graph.memory_of_layer(layer) for layer in range(graph.hparams.n_layer)],
            causal=graph.causal,
            size=size or self.n_ctx,
            n_seq=n_seq,
            unified=unified,
            n_ubatch=n_ubatch,
            type_k=self.type_k,
            type_v=self.type_v,
            rotate=self.rotate,
        )

    def decode(
        self,
        batch: Batch,
        memory: Memory,
        probe: Probe = silent,
        *,
        ops: ReferenceOps | None = None,
    ) -> F32:
        """Return logits, (outputs, vocabulary), in the order of the batch, for any number of
        ubatches; or embeddings (tokens or sequences, width). ops: used instead of the model's ops
        for this batch.
        """

        def compute(ubatch: Batch, views: Mapping[int, LayerView]) -> F32:
            return self.compute(ubatch, views, probe, ops)

        if self.graph.embeds and len(batch) > self.n_ubatch:
            raise InvalidModel(f"{len(batch)} tokens at once, but a ubatch holds {self.n_ubatch}")
        sizes = {"n_vocab": self.graph.hparams.n_vocab, "n_ubatch": self.n_ubatch}
        logits = decode(entries_of(batch), memory, compute, **sizes)
        assert logits is not None
        return logits

    def compute(
        self,
        ubatch: Batch,
        views: Mapping[int, LayerView],
        probe: Probe = silent,
        ops: ReferenceOps | None = None,
    ) -> F32:
        """Return an ubatch's logits, (outputs, vocabulary), or its embeddings.

        The tokens already have their cells in memory. `views` show the cells of each layer.
        """
        ops = ops or self.ops
        if self.lora:
            ops = cast(ReferenceOps, LoraOps(ops, self.lora))
        probe = steer(probe, self.directions) if self.directions else probe
        step = Step(ubatch, views, ops, probe, self.flash_attn)
        with np.errstate(all="ignore"):  # a model's own overflow is a valid answer
            return self.graph.forward(step)

    def rotate(self, layer: int, keys: F32, deltas: NDArray[np.int32]) -> F32:
        """Return cached keys rotated further by `deltas` positions: (cells, kv_heads, dim)."""
        params = self.graph.rope_params(layer)
        if params is None:  # without rotation, keys do not depend on the position
            return keys
        moved = keys.astype(np.float32)
        part = moved[..., self.graph.rotated_part()]
        # YaRN's magnitude is applied only once, when a key is stored
        part[...] = self.ops.rope(part, deltas, replace(params, magnitude=1.0))
        return moved

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Return `n` greedy tokens after the prompt; generation goes on after an end-of-text
        token."""
        return [token for token, _ in self.choices(prompt, n)]

    def choices(self, prompt: Sequence[int], n: int) -> Iterator[tuple[int, F32]]:
        """Yield the tokens of `greedy`, each with its row of logits."""
        memory, batch = self.new_memory(), Batch.of(prompt)
        for at in range(len(prompt), len(prompt) + n):
            last = self.decode(batch, memory)[-1]
            token = greedy(last)
            yield token, last
            batch = Batch.of([token], start=at)

    def release(self) -> None:
        """Release the pages of a large file, which otherwise count as memory of this process. Call
        this at the end of a run, not after each batch: reading the pages again costs a page fault
        each.
        """
        if self.file.size > LARGE and not self.keeps_pages:
            self.file.release()

    def close(self) -> None:
        self.file.close()
        if self.lora:
            self.lora.close()
