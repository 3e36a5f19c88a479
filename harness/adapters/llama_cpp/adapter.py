"""llama.cpp, through llama-cpp-python's low-level interface: the usual oracle."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch, encoded_first
from lockstep.engine.choices import choices
from lockstep.engine.errors import EngineError, NotInModel, Unsupported
from lockstep.engine.node import Node
from lockstep.harness.adapters.llama_cpp import gguf, identity, product, sampling, synth
from lockstep.harness.adapters.llama_cpp import op as single_op
from lockstep.harness.adapters.llama_cpp.activations import conversions
from lockstep.harness.adapters.llama_cpp.lib import Library, TypeTraits, library
from lockstep.harness.adapters.llama_cpp.model import MAX_SEQUENCES, LlamaContext, LlamaModel
from lockstep.harness.adapters.llama_cpp.parse import parse
from lockstep.harness.adapters.llama_cpp.schedule import run_schedule
from lockstep.harness.adapters.llama_cpp.sites import ARCHITECTURES
from lockstep.harness.adapters.llama_cpp.states import StateFiles
from lockstep.harness.adapters.llama_cpp.tokens import check_ids, detokenize, tokenize
from lockstep.harness.adapters.llama_cpp.trace import (
    CACHES,
    AttentionKind,
    SiteRecorder,
    check_replaceable,
)
from lockstep.harness.adapters.parts.parsing import files_of
from lockstep.harness.adapters.parts.timing import Piece, pieces_of, seconds_each
from lockstep.harness.records import (
    Captured,
    EngineInfo,
    Evaluation,
    Fault,
    FileSummary,
    Nodes,
    Request,
    SampleAnswer,
    SampleRequest,
    Settings,
    TensorSummary,
    Trace,
)

if TYPE_CHECKING:
    from lockstep.harness.adapters.llama_cpp.capture import NodeWatch


class LlamaCpp(StateFiles, name="llama.cpp"):
    """llama.cpp. It loads the parts that a question needs, and keeps them until `close`."""

    isolated = True
    package = ("llama-cpp-python", "llama_cpp")

    def __init__(self, model: Path | None, settings: Settings) -> None:
        super().__init__(model, settings)
        self._vocab_only: LlamaModel | None = None
        self._full: LlamaModel | None = None
        self._contexts: dict[bool, LlamaContext] = {}  # traced -> context
        self._embedding: LlamaContext | None = None
        self._watched: tuple[LlamaContext, NodeWatch] | None = None
        self._attention: AttentionKind | None = None  # None: not yet determined

    @classmethod
    def check_libraries(cls) -> None:
        identity.check_libraries()

    @property
    def lib(self) -> Library:
        return library()

    def describe(self) -> EngineInfo:
        build = self.lib.llama.llama_print_system_info().decode().strip(" |")
        if not self.lib.repacking_is_a_choice:
            build += " | it repacks weights whatever the settings say"
        return EngineInfo(
            engine=self.name,
            version=self.lib.version,
            build=build,
            generic=conversions(self.lib, build, self.settings, self.model),
            settings=self.settings,
            fixed=CACHES,  # these are storage; values can be replaced before they are stored
            computes_nodes=self.lib.number == single_op.WRITTEN_FOR,
        )

    def metadata(self) -> FileSummary:
        return gguf.read(self.lib, self._path())

    def parse(
        self, blob: NDArray[np.uint8], ends: NDArray[np.int64], way: str
    ) -> dict[str, NDArray[Any] | dict[int, str]]:
        return parse(self.lib, list(files_of(blob, ends)), way)

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        model = self._tokenizer()
        return [tokenize(model, text, add_special, parse_special) for text in texts]

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        model = self._tokenizer()
        return [detokenize(model, row, remove_special, unparse_special) for row in ids]

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return dequantize(self.lib, type_name, raw)

    def multiply(
        self, type_name: str, raw: NDArray[np.uint8], x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        kinds = traits_of(self.lib)
        if type_name not in kinds:
            raise Unsupported(f"llama.cpp has no type {type_name!r}")
        kind = (type_name, kinds[type_name][0])
        return product.multiply(self.lib, kind, raw, x, self.settings.n_threads)

    def time_dequantize(
        self, type_name: str, raw: NDArray[np.uint8], seconds: float, threads: int
    ) -> float:
        return time_to_float(self.lib, type_name, raw, seconds, threads)

    def name_tensors(self, metadata: bytes) -> tuple[TensorSummary, ...]:
        return synth.name_tensors(self.lib, metadata)

    def evaluate(self, request: Request) -> Evaluation:
        self._check(request)
        recorder = None
        if request.capture or request.replace:
            recorder = SiteRecorder(self.lib.ggml, capture=request.capture, replace=request.replace)
        context = self._context(traced=recorder is not None)
        context.clear()
        context.observer = recorder
        logits, tokens = [], 0
        for batch in request.batches:
            logits.append(context.decode(batch))
            tokens += len(batch)
            if recorder is not None:
                flash = self.settings.flash_attn
                recorder.finish_step(tokens=tokens, layers=context.model.n_layer, flash=flash)
        trace = None
        if recorder is not None and request.capture:
            trace = Trace(engine=self.name, records=tuple(recorder.records))
        return Evaluation(logits=tuple(logits), trace=trace)

    def embed(self, batches: Sequence[Batch]) -> tuple[NDArray[np.float32], ...]:
        self._check_batches(batches)
        if self._embedding is None:
            self._embedding = LlamaContext(self._weights(), self.settings)
            self._embedding.show_embeddings(True)
        context = self._embedding
        self._check_embeds(context)
        self._check_ubatches(context, batches)
        context.clear()
        return tuple(context.embed(batch) for batch in batches)

    def capture(
        self,
        batches: Sequence[Batch],
        fault: Fault | None,
        emit: Callable[[Nodes], None],
        *,
        embeddings: bool = False,
        values: bool = True,
    ) -> Captured:
        self._check_batches(batches)
        from lockstep.harness.adapters.llama_cpp.capture import capture_batches

        context, watch = self._watching()
        self._check_ubatches(context, batches)
        has_logits = context.model.has_decoder and context.has_memory
        context.show_embeddings(embeddings or not has_logits)
        context.clear()
        shown = {"embeddings": embeddings, "values": values}
        return capture_batches(context, watch, batches, fault, emit, **shown)

    def time_capture(self, batches: Sequence[Batch]) -> dict[str, float]:
        from lockstep.harness.adapters.llama_cpp.capture_time import time_capture

        plain, traced = self._made(traced=False), self._made(traced=True)
        return time_capture(plain, traced, self._watching(), batches)

    def compute(self, node: Node) -> NDArray[Any]:
        return single_op.compute(self.lib, node, self.settings.n_threads)

    def sample(self, request: SampleRequest) -> SampleAnswer:
        vocabulary = None
        if sampling.needs_vocabulary(request):
            vocabulary = self._tokenizer().vocabulary
        return sampling.sample(self.lib, request, vocabulary)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if not prompt:
            raise EngineError("a prompt needs at least one token")
        batch = Batch.of(prompt)
        batch.outputs[:-1] = False
        self._check_room(len(prompt) + n - 1)
        self._check_tokens(batch)
        context = self._context(traced=False)
        context.clear()
        if context.model.has_encoder:
            context.run(Batch.to_encode(batch))
            batch = Batch.of([context.model.decoder_start])
        ids: list[int] = []
        at = len(batch)
        while len(ids) < n:
            ids.append(int(np.argmax(context.decode(batch)[-1])))
            batch = Batch.of([ids[-1]], start=at + len(ids) - 1)
        return ids

    def schedule(self, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        return run_schedule(self._weights(), self.settings, plan)

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()
        self._contexts.clear()
        for extra in (self._embedding, self._watched and self._watched[0]):
            if extra is not None:
                extra.close()
        self._embedding = self._watched = None
        for model in (self._full, self._vocab_only):
            if model is not None:
                model.close()
        self._full = self._vocab_only = None

    # --- loading ------------------------------------------------------------------------------

    def _path(self) -> Path:
        if self.model is None:
            raise EngineError("the question needs a model file, and none was given")
        return self.model

    def _weights(self) -> LlamaModel:
        if self._full is None:
            self._full = LlamaModel(self.lib, self._path(), self.settings, vocab_only=False)
        return self._full

    def _tokenizer(self) -> LlamaModel:
        model = self._full or self._vocab_only
        if model is None:
            model = LlamaModel(self.lib, self._path(), self.settings, vocab_only=True)
            self._vocab_only = model
        if not model.has_tokenizer:
            raise EngineError(f"{self._path().name} has no tokenizer (tokenizer.ggml.model)")
        return model

    def _context(self, *, traced: bool) -> LlamaContext:
        if not self._looked_at().logits:
            name = self._weights().metadata("general.architecture")
            raise NotInModel(f"the model ({name}) has no logits, so there is no next token")
        return self._made(traced=traced)

    def _made(self, *, traced: bool) -> LlamaContext:
        if traced not in self._contexts:
            self._contexts[traced] = LlamaContext(self._weights(), self.settings, traced=traced)
        return self._contexts[traced]

    def _watching(self) -> tuple[LlamaContext, "NodeWatch"]:
        if self._watched is None:
            from lockstep.harness.adapters.llama_cpp.capture import (
                NodeWatch,  # imported here, because it compiles
            )

            watch = NodeWatch(self.lib)
            context = LlamaContext(self._weights(), self.settings, watch=watch.callback)
            self._watched = context, watch
        return self._watched

    def _looked_at(self) -> AttentionKind:
        """Return llama.cpp's choice of attention. If our code maps this graph to ours, check first
        that the choice agrees with the settings. Raises EngineError if not.

        llama.cpp itself decides if flash attention is possible (some layers of T5 and Grok have
        none). For a model without logits, such as BERT, it reports no error but returns zeros. One
        token is enough, because the choice is made with the context.
        """
        if self._attention is not None:
            return self._attention
        context, one = self._made(traced=True), Batch.of([0])
        context.clear()  # the context may hold earlier tokens
        kind = AttentionKind(self.lib.ggml, context.model.n_vocab)
        context.observer = kind
        for batch in encoded_first([one], context.model.has_both):
            context.run(batch)
        wrong = kind.plain if self.settings.flash_attn else kind.flash
        mapped = context.model.metadata("general.architecture") in ARCHITECTURES
        if wrong and mapped:
            asked = "on" if self.settings.flash_attn else "off"
            raise EngineError(f"flash attention should be {asked}, but {wrong} layers differ")
        self._attention = kind
        return kind

    # --- refusals -----------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        self._check_batches(request.batches)
        if not request.capture and not request.replace:
            return
        check_replaceable(request.replace, len(request.batches))
        architecture = self._weights().metadata("general.architecture")
        if architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise Unsupported(f"no map of llama.cpp's {architecture!r} graph (known: {known})")
        longest = max(map(len, request.batches), default=0)
        if longest > self.settings.n_ubatch:
            raise EngineError(
                f"{longest} tokens need several ubatches of {self.settings.n_ubatch}, and "
                "llama.cpp shows sites only for a single ubatch per batch"
            )

    def _check_embeds(self, context: LlamaContext) -> None:
        """Check that the model has no logits, or that its metadata asks for embeddings."""
        if self._looked_at().logits and not context.pools:
            raise NotInModel("the model has logits, and does not ask for embeddings")

    def _check_ubatches(self, context: LlamaContext, batches: Sequence[Batch]) -> None:
        """Refuse several ubatches with two-way attention, because llama.cpp would abort."""
        model = context.model
        causal = model.metadata(f"{model.metadata('general.architecture')}.attention.causal")
        every = causal == "false" or not (model.has_decoder and context.has_memory)
        longest = max((len(batch) for batch in batches if every or batch.encoder), default=0)
        if longest > self.settings.n_ubatch:
            raise Unsupported(
                f"llama.cpp needs a batch of this model in one ubatch, and {longest} "
                f"tokens are more than n_ubatch {self.settings.n_ubatch}"
            )

    def _check_room(self, tokens: int) -> None:
        if tokens > self.settings.n_ctx:
            raise EngineError(
                f"{tokens} tokens do not fit a context of {self.settings.n_ctx} (settings.n_ctx)"
            )

    def _check_batches(self, batches: Sequence[Batch]) -> None:
        sizes = [len(batch) for batch in batches if not batch.encoder]
        if sum(sizes) > self.settings.n_ctx and not self._context(traced=False).has_memory:
            sizes = [max(sizes)]  # without a memory, only the longest batch needs room
        self._check_room(sum(sizes))
        for batch in batches:
            self._check_tokens(batch)
        both = self._weights().has_both
        if both and batches and not batches[0].encoder:
            raise EngineError("the first batch of a model with a decoder is for its encoder")
        if not both and any(batch.encoder for batch in batches):
            raise EngineError("a batch for an encoder needs a model with encoder and decoder")

    def _check_tokens(self, batch: Batch) -> None:
        n_vocab = self._weights().n_vocab
        if len(batch) == 0:
            raise EngineError("a batch needs at least one token")
        check_ids(batch.tokens.tolist(), n_vocab)
        if batch.seq_ids.min() < 0 or batch.seq_ids.max() >= MAX_SEQUENCES:
            raise EngineError(f"sequence ids go from 0 to {MAX_SEQUENCES - 1}")


def dequantize(lib: Library, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    traits = decoder(lib, type_name)
    blocks, rest = divmod(raw.size, traits.block_bytes)
    if rest:
        raise EngineError(
            f"{raw.size} bytes are not a multiple of a {type_name} block "
            f"({traits.block_bytes} bytes)"
        )
    raw = np.ascontiguousarray(raw, np.uint8).reshape(-1)
    if type_name == "F32":  # ggml has no decoder for F32
        return raw.view(np.float32).copy()
    out = np.empty(blocks * traits.block_weights, np.float32)
    traits.to_float(raw.ctypes.data, out.ctypes.data, out.size)
    return out


def decoder(lib: Library, type_name: str) -> TypeTraits:
    kinds = traits_of(lib)
    if type_name not in kinds or not (kinds[type_name][1].to_float or type_name == "F32"):
        known = sorted(n for n, (_, t) in kinds.items() if t.to_float or n == "F32")
        raise Unsupported(f"llama.cpp has no decoder for {type_name!r} {choices(type_name, known)}")
    return kinds[type_name][1]


def traits_of(lib: Library) -> dict[str, tuple[int, TypeTraits]]:
    """Return the id and traits of every type that ggml knows, by our names."""
    every = [(i, lib.ggml.ggml_get_type_traits(i)) for i in range(lib.n_types)]
    return {t.contents.type_name.decode().upper(): (i, t.contents) for i, t in every}


def time_to_float(
    lib: Library, type_name: str, raw: NDArray[np.uint8], seconds: float, threads: int
) -> float:
    traits = decoder(lib, type_name)
    if not traits.to_float:
        raise Unsupported(f"llama.cpp does not decode {type_name}, so there is nothing to time")

    def decode(piece: Piece) -> None:
        traits.to_float(piece[0].ctypes.data, piece[1].ctypes.data, piece[1].size)

    pieces = pieces_of(raw, (traits.block_bytes, traits.block_weights), threads)
    return seconds_each(decode, pieces, seconds)
