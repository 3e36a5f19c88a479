"""Writing and reading of llama.cpp's state files. Damaged files are read in forks that may die."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, NotInModel
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.llama_cpp.model import MAX_SEQUENCES, LlamaContext, LlamaModel
from lockstep.harness.adapters.llama_cpp.parse import quiet
from lockstep.harness.adapters.parts.forked import MemoryFile, in_memory_file, parse_forked
from lockstep.harness.adapters.parts.parsing import ACCEPTED, files_of
from lockstep.harness.adapters.parts.restoring import (
    CELLS_STAY,
    CLEAN,
    REFUSED_STATE,
    STUCK,
    digest_of_logits,
)

Logits = tuple[NDArray[np.float32], ...]


class StateFiles(Adapter):
    """The questions about state files, for an adapter whose `_weights` make the contexts."""

    def _weights(self) -> LlamaModel:
        raise NotImplementedError

    @contextmanager
    def _fresh(self) -> Iterator[LlamaContext]:
        context = LlamaContext(self._weights(), self.settings)
        try:
            yield context
        finally:
            context.close()

    def save(
        self,
        batches: Sequence[Batch],
        then: Sequence[Batch],
        path: str,
        sequence: int | None = None,
    ) -> Logits:
        with self._fresh() as context:
            if not context.has_memory:
                raise NotInModel("the model keeps nothing of a batch, so there is no state to save")
            for batch in batches:
                context.run(batch)
            write_state(context, tokens_of(batches, sequence), path, sequence)
            return tuple(context.decode(batch) for batch in then)

    def load(self, path: str, then: Sequence[Batch], sequence: int | None = None) -> Logits:
        with self._fresh() as context:
            with context.lib.refusals(f"llama.cpp does not load {path}"):
                if not read_state(context, path.encode(), sequence):
                    raise EngineError("the state was refused")
            return tuple(context.decode(batch) for batch in then)

    def restore(
        self,
        blob: NDArray[np.uint8],
        ends: NDArray[np.int64],
        sequence: int | None,
        then: Batch,
    ) -> dict[str, Any]:
        model = self._weights()
        with in_memory_file() as file, quiet(model.lib) as said:
            reader = Restorer(self, file, said, sequence, then)
            return parse_forked(reader, list(files_of(blob, ends)))


class Restorer:
    """Reads files in one process, into a context that is cleared before each file."""

    def __init__(
        self,
        adapter: StateFiles,
        file: MemoryFile,
        said: list[str],
        sequence: int | None,
        then: Batch,
    ) -> None:
        self.adapter, self.file, self.said = adapter, file, said
        self.sequence, self.then = sequence, then
        self.context: LlamaContext | None = None

    def __call__(self, raw: bytes) -> tuple[str, int, str]:
        """Return the ending, the digest of the state after the file, and the reason."""
        if self.context is None:
            # one thread, because threads do not survive a fork
            settings = replace(self.adapter.settings, n_threads=1)
            self.context = LlamaContext(self.adapter._weights(), settings)
        context = self.context
        context.clear()
        self.said.clear()
        taken = read_state(context, self.file.holding(raw), self.sequence)
        why = self.said[0].strip() if self.said else ""
        if not taken:
            return REFUSED_STATE, CELLS_STAY if has_cells(context) else CLEAN, why
        try:
            return ACCEPTED, digest_of_logits(context.decode(self.then)), why
        except (EngineError, RuntimeError) as error:
            return ACCEPTED, STUCK, str(error)


def tokens_of(batches: Sequence[Batch], sequence: int | None) -> list[int]:
    """Return the tokens in a file: all tokens, or only those of one sequence."""
    return [
        int(token)
        for batch in batches
        for token, seq in zip(batch.tokens, batch.seq_ids, strict=True)
        if sequence is None or int(seq) == sequence
    ]


def write_state(
    context: LlamaContext, tokens: Sequence[int], path: str, sequence: int | None
) -> None:
    llama, held = context.lib.llama, (ctypes.c_int32 * len(tokens))(*tokens)
    if sequence is None:
        done = llama.llama_state_save_file(context.pointer, path.encode(), held, len(tokens))
    else:
        done = llama.llama_state_seq_save_file(
            context.pointer, path.encode(), sequence, held, len(tokens)
        )
    if not done:
        raise EngineError(f"llama.cpp does not write {path}")


def read_state(context: LlamaContext, path: bytes, sequence: int | None) -> bool:
    """Return True if llama.cpp reports that it has accepted the file."""
    llama, most = context.lib.llama, context.lib.llama.llama_n_ctx(context.pointer)
    held, n = (ctypes.c_int32 * most)(), ctypes.c_size_t(0)
    if sequence is None:
        return bool(llama.llama_state_load_file(context.pointer, path, held, most, ctypes.byref(n)))
    return bool(
        llama.llama_state_seq_load_file(
            context.pointer, path, sequence, held, most, ctypes.byref(n)
        )
    )


def has_cells(context: LlamaContext) -> bool:
    """Return True if any sequence has a position in the memory."""
    if not context.has_memory:
        return False
    llama, memory = context.lib.llama, context.lib.llama.llama_get_memory(context.pointer)
    return any(llama.llama_memory_seq_pos_max(memory, s) >= 0 for s in range(MAX_SEQUENCES))
