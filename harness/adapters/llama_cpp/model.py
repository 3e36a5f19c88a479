"""A model of llama.cpp and its contexts: the C objects, with every option set explicitly."""

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.adapters.llama_cpp.adapters import (
    load_loras,
    put_control_vectors,
    put_loras,
)
from lockstep.harness.adapters.llama_cpp.lib import Library
from lockstep.harness.adapters.llama_cpp.versions import put
from lockstep.harness.records import CACHE_TYPES, Settings

MAX_SEQUENCES = 8
MAPPED = 1  # a value of llama_load_mode
FLASH_AUTO, FLASH_OFF = -1, 0  # values of llama_flash_attn_type
VOCABULARY_NONE = 0  # a value of llama_vocab_type
TOKEN_NULL = -1
POOLING_NONE, POOLING_RANK = 0, 4  # values of llama_pooling_type
NO_CELL, INVALID_BATCH = 1, -1  # results of llama_decode for refused input
# this version does not know the architecture, which says nothing about the file
UNKNOWN = "unknown model architecture"
AS_THEY_ARE = "LLAMA_ATTN_ROT_DISABLE"
NO_FIELDS: Mapping[str, Any] = {}


class Observer(Protocol):
    """An observer of the nodes in a traced context."""

    def wants(self, address: int) -> bool:
        """Return True to see this node's value once it is computed."""

    def sees(self, address: int) -> None:
        """Look at a node that has just been computed."""


class LlamaModel:
    """The weights of a model, or only its vocabulary. Raises EngineError with llama.cpp's own
    reason."""

    def __init__(self, lib: Library, path: Path, settings: Settings, *, vocab_only: bool) -> None:
        self.lib = lib
        llama = lib.llama
        params = llama.llama_model_default_params()
        put(
            params,
            n_gpu_layers=0,
            load_mode=MAPPED,
            use_mmap=True,
            use_extra_bufts=settings.repack,
            vocab_only=vocab_only,
        )
        with lib.refusals(f"llama.cpp does not load {path.name}"):
            self.pointer = llama.llama_model_load_from_file(bytes(path), params)
            if not self.pointer:
                kind = Unsupported if lib.complained_of(UNKNOWN) else EngineError
                raise kind("llama_model_load_from_file failed")
        self.loras = [] if vocab_only else load_loras(lib, self.pointer, settings)
        self.vocabulary = llama.llama_model_get_vocab(self.pointer)
        self.n_vocab: int = llama.llama_vocab_n_tokens(self.vocabulary)
        self.n_layer: int = llama.llama_model_n_layer(self.pointer)

    @property
    def has_tokenizer(self) -> bool:
        kind: int = self.lib.llama.llama_vocab_type(self.vocabulary)
        return kind != VOCABULARY_NONE

    @property
    def has_encoder(self) -> bool:
        found: bool = self.lib.llama.llama_model_has_encoder(self.pointer)
        return found

    @property
    def has_decoder(self) -> bool:
        found: bool = self.lib.llama.llama_model_has_decoder(self.pointer)
        return found

    @property
    def has_both(self) -> bool:
        return self.has_encoder and self.has_decoder

    @property
    def decoder_start(self) -> int:
        """Return the first token of a decoder, as llama.cpp's tools choose it."""
        llama = self.lib.llama
        start: int = llama.llama_model_decoder_start_token(self.pointer)
        if start == TOKEN_NULL:
            start = llama.llama_vocab_bos(self.vocabulary)
        return max(start, 0)

    def metadata(self, key: str) -> str:
        """Return a metadata value as llama.cpp prints it; empty if there is none."""
        size = 256
        text = ctypes.create_string_buffer(size)
        self.lib.llama.llama_model_meta_val_str(self.pointer, key.encode(), text, size)
        return text.value.decode(errors="replace")

    def close(self) -> None:
        self.lib.llama.llama_model_free(self.pointer)


class LlamaContext:
    """A KV cache and a graph. `traced`: an observer can see the nodes.

    `watch`: the address of a C function that sees each node instead of the observer, and the
    address of its data. `fields`: llama.cpp parameters that override the settings.
    """

    def __init__(
        self,
        model: LlamaModel,
        settings: Settings,
        *,
        traced: bool = False,
        watch: tuple[int, int] | None = None,
        fields: Mapping[str, Any] = NO_FIELDS,
    ) -> None:
        self.model = model
        self.lib = model.lib
        self.observer: Observer | None = None
        self.error: BaseException | None = None
        llama = self.lib.llama
        # kept here, because the context holds a pointer to it
        self._callback = llama.ggml_backend_sched_eval_callback(self._on_node)
        params = context_params(self.lib, settings)
        put(params, **fields)
        if traced:
            params.cb_eval = self._callback
        if watch is not None:
            params.cb_eval = llama.ggml_backend_sched_eval_callback(watch[0])
            params.cb_eval_user_data = watch[1]
        with self.lib.refusals("llama.cpp does not make a context"), keep_heads(settings):
            self.pointer = llama.llama_init_from_model(model.pointer, params)
            if not self.pointer:
                self.lib.check_room()
                raise EngineError("llama_init_from_model failed")
        put_loras(self.lib, self.pointer, model.loras, settings)
        put_control_vectors(self.lib, self.pointer, model.pointer, settings)

    @property
    def has_memory(self) -> bool:
        """Return True if the model has a memory. An encoder has none."""
        return bool(self.lib.llama.llama_get_memory(self.pointer))

    def show_embeddings(self, shown: bool) -> None:
        """Make the graph compute embeddings, or stop doing so. They are pooled if the model says
        how."""
        self.lib.llama.llama_set_embeddings(self.pointer, shown)

    @property
    def pools(self) -> bool:
        """Return True if there is one embedding for each sequence, not for each token."""
        return bool(self.lib.llama.llama_pooling_type(self.pointer) != POOLING_NONE)

    def clear(self) -> None:
        """Forget every token, and fill the cache with zeros."""
        llama = self.lib.llama
        if self.has_memory:
            llama.llama_memory_clear(llama.llama_get_memory(self.pointer), True)

    def decode(self, batch: Batch) -> NDArray[np.float32]:
        """Return the logits of a batch's outputs: (outputs, vocabulary)."""
        self.run(batch)
        return self._logits(np.flatnonzero(batch.outputs))

    def embed(self, batch: Batch) -> NDArray[np.float32]:
        """Return the embeddings: (tokens, width), or (sequences, width) if the model pools them."""
        self.run(batch)
        return self._embeddings(batch)

    def run(self, batch: Batch) -> None:
        """Compute a batch without fetching results."""
        llama = self.lib.llama
        encodes = batch.encoder or not self.model.has_decoder
        held = llama.llama_batch_init(max(len(batch), 1), 0, 1)
        try:
            fill(held, batch)
            with self.lib.refusals("llama.cpp does not compute the batch"):
                self._compute(llama.llama_encode if encodes else llama.llama_decode, held)
        finally:
            llama.llama_batch_free(held)

    def logits_if_any(self, batch: Batch) -> NDArray[np.float32] | None:
        """Return the logits of the last batch; None if there are none."""
        outputs = np.flatnonzero(batch.outputs)
        if not self.model.has_decoder or not len(outputs):
            return None
        if not self.lib.llama.llama_get_logits_ith(self.pointer, int(outputs[0])):
            return None
        return self._logits(outputs)

    def close(self) -> None:
        self.lib.llama.llama_free(self.pointer)

    def call(self, work: Any, held: Any) -> int:
        """Return the status of the call. Raises the observer's exception."""
        self.error = None
        status: int = work(self.pointer, held)
        if self.error is not None:
            raise self.error
        return status

    def _compute(self, work: Any, held: Any) -> None:
        status = self.call(work, held)
        if status in (NO_CELL, INVALID_BATCH):
            raise EngineError(f"{work.__name__} returned {status}")
        if status != 0:
            raise RuntimeError(f"{work.__name__} returned {status}")

    def _logits(self, outputs: NDArray[np.intp]) -> NDArray[np.float32]:
        n_vocab = self.model.n_vocab
        logits = np.empty((len(outputs), n_vocab), np.float32)
        for row, at in enumerate(outputs):
            pointer = self.lib.llama.llama_get_logits_ith(self.pointer, int(at))
            if not pointer:
                raise RuntimeError(f"llama.cpp holds no logits for token {at} of the batch")
            logits[row] = np.ctypeslib.as_array(pointer, (n_vocab,))
        return logits

    def _embeddings(self, batch: Batch) -> NDArray[np.float32]:
        llama, model = self.lib.llama, self.model.pointer
        rank = llama.llama_pooling_type(self.pointer) == POOLING_RANK
        width = (llama.llama_model_n_cls_out if rank else llama.llama_model_n_embd_out)(model)
        fetch = llama.llama_get_embeddings_seq if self.pools else llama.llama_get_embeddings_ith
        rows = np.unique(batch.seq_ids) if self.pools else np.arange(len(batch))
        embeddings = np.empty((len(rows), width), np.float32)
        for row, at in zip(embeddings, rows.tolist(), strict=True):
            pointer = fetch(self.pointer, at)
            if not pointer:
                raise RuntimeError(f"llama.cpp holds no embeddings for {at}")
            row[:] = np.ctypeslib.as_array(pointer, (width,))
        return embeddings

    def _on_node(self, address: int, asking: bool, _: object) -> bool:
        """Handle a node. Exceptions cannot pass through C code, so one is kept in `error`, and the
        graph stops at once."""
        if self.observer is None or self.error is not None:
            return False
        try:
            if asking:
                return self.observer.wants(address)
            self.observer.sees(address)
        except BaseException as error:
            self.error = error
            # asks for this node, because llama.cpp can stop only after a requested node
            return asking
        return True


@contextmanager
def keep_heads(settings: Settings) -> Iterator[None]:
    """Let contexts that are made in this block keep heads unrotated in quantised caches, if the
    settings say so."""
    if settings.turned:
        yield
        return
    os.environ[AS_THEY_ARE] = "1"
    try:
        yield
    finally:
        del os.environ[AS_THEY_ARE]


def context_params(lib: Library, settings: Settings) -> Any:
    params = lib.llama.llama_context_default_params()
    put(
        params,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_ctx,
        n_ubatch=min(settings.n_ubatch, settings.n_ctx),
        n_seq_max=MAX_SEQUENCES,
        kv_unified=True,
        n_threads=settings.n_threads,
        n_threads_batch=settings.n_threads,
        flash_attn_type=FLASH_AUTO if settings.flash_attn else FLASH_OFF,
        flash_attn=settings.flash_attn,
        type_k=cache_type(settings.type_k),
        type_v=cache_type(settings.type_v),
        embeddings=False,
        offload_kqv=False,
        op_offload=False,
        no_perf=True,
    )
    return params


def cache_type(name: str) -> int:
    if name not in CACHE_TYPES:
        raise EngineError(f"no cache type {name!r} (known: {', '.join(CACHE_TYPES)})")
    return type_by_name(name).id


def fill(held: Any, batch: Batch) -> None:
    held.n_tokens = len(batch)
    for i in range(len(batch)):
        held.token[i] = int(batch.tokens[i])
        held.pos[i] = int(batch.positions[i])
        held.n_seq_id[i] = 1
        held.seq_id[i][0] = int(batch.seq_ids[i])
        held.logits[i] = int(batch.outputs[i])
