"""Our own engine, with ggml's deliberate roundings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidModel, NotInModel, Unsupported
from lockstep.engine.gguf.file import GgufFile, Value
from lockstep.engine.guidance import guide
from lockstep.engine.memory.none import NoMemory
from lockstep.engine.memory.sbatch_schedule import SbatchSchedule
from lockstep.engine.memory.schedule import Schedule, pad_context
from lockstep.engine.memory.window import Window
from lockstep.engine.model import Model
from lockstep.engine.node import Node
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.fused.base import Call, operate
from lockstep.engine.ops.ggml.base import expect, round_to_type
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.states.fit import shape_of_model
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.trace import silent
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.parts import file_summary as summary
from lockstep.harness.adapters.parts.parsing import files_of
from lockstep.harness.adapters.parts.reference_parse import parse
from lockstep.harness.adapters.parts.reference_restore import (
    limits_of,
    reason_to_refuse,
    restore_each,
)
from lockstep.harness.adapters.parts.reference_sample import sample
from lockstep.harness.adapters.parts.reference_state import read_tree, write_tree
from lockstep.harness.adapters.parts.timing import pieces_of, seconds_each
from lockstep.harness.records import (
    CONTROL_VECTOR,
    LORA,
    EngineInfo,
    Evaluation,
    FileSummary,
    Request,
    SampleAnswer,
    SampleRequest,
    Site,
    TensorRecord,
    TensorSummary,
    Trace,
)

CACHES = ("k_cache", "v_cache")


class Reference(Adapter, name="reference"):
    """Our reference engine. A wrong engine replaces `ops`, or overrides `make_model`, and is right
    in all other respects."""

    ops: ClassVar[type[Mirror]] = Mirror

    def describe(self) -> EngineInfo:
        return EngineInfo(
            engine=self.name,
            version="0.1.0",
            settings=self.settings,
            shows_nodes=True,
        )

    def make_ops(self) -> Ops:
        return self.ops(self.settings.n_threads, self.settings.n_ctx, self.settings.generic)

    def make_model(self) -> Model:
        if self.model is None:
            raise InvalidModel(f"{self.name} was opened without a model file")
        s = self.settings
        return Model(
            self.model,
            self.make_ops(),
            type_k=s.type_k,
            type_v=s.type_v,
            flash_attn=s.flash_attn,
            n_ctx=s.n_ctx,
            n_ubatch=s.n_ubatch,
            loras=s.files_of(LORA),
            control_vectors=s.files_of(CONTROL_VECTOR),
        )

    @cached_property
    def loaded(self) -> Model:
        return self.make_model()

    @cached_property
    def file(self) -> GgufFile:
        if self.model is None:
            raise InvalidModel(f"{self.name} was opened without a model file")
        return GgufFile.open(self.model)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.file.metadata)

    def metadata(self) -> FileSummary:
        return summary_of(self.file)

    def open_file(self, raw: bytes) -> GgufFile:
        """Open a file. A wrong reader overrides this method."""
        return GgufFile(raw)

    def parse(
        self, blob: NDArray[np.uint8], ends: NDArray[np.int64], way: str
    ) -> dict[str, NDArray[Any] | dict[int, str]]:
        if way != "buffer":
            raise Unsupported(f"{self.name} parses files by way of 'buffer', not {way!r}")
        return parse(self.open_file, list(files_of(blob, ends)))

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        return [
            self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
            for text in texts
        ]

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        return [
            self.tokenizer.decode(
                row, remove_special=remove_special, unparse_special=unparse_special
            )
            for row in ids
        ]

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return WeightFormat.member(type_name).dequantize(raw)

    def multiply(
        self, type_name: str, raw: NDArray[np.uint8], x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        kind, columns = WeightFormat.member(type_name), x.shape[-1]
        weights = kind.whole_blocks(raw) * kind.weights
        if not columns or columns % kind.weights or weights % columns:
            raise InvalidModel(
                f"{raw.size} bytes of {type_name} are not a multiple of rows of {columns} weights"
            )
        shape = (weights // columns, columns)
        return self.make_ops().linear(x, Weight("weights", kind, shape, raw.reshape(-1)))

    def time_dequantize(
        self, type_name: str, raw: NDArray[np.uint8], seconds: float, threads: int
    ) -> float:
        kind = WeightFormat.member(type_name)
        pieces = pieces_of(raw, (kind.layout.itemsize, kind.weights), threads)
        return seconds_each(lambda piece: kind.dequantize_into(*piece), pieces, seconds)

    def evaluate(self, request: Request) -> Evaluation:
        if self.loaded.graph.embeds != request.embeddings:
            lacks, has = ("embeddings", "logits")[:: 1 if request.embeddings else -1]
            raise NotInModel(f"our graph of the model has no {lacks}, but {has}")
        memory = self.loaded.new_memory()
        # Caches are not shown if only some layers have windows, because engines may trim caches in
        # different ways, or if nothing is cached.
        recorder = TensorRecorder(request, CACHES if isinstance(memory, Window | NoMemory) else ())
        logits = []
        for step, batch in enumerate(request.batches):
            recorder.step = step
            probe = recorder if request.capture or request.replace else silent
            logits.append(self.loaded.decode(batch, memory, probe))
        self.loaded.release()
        trace = Trace(engine=self.name, records=tuple(recorder.records))
        return Evaluation(logits=tuple(logits), trace=trace if request.capture else None)

    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        return self.evaluate(Request(batches=tuple(batches), embeddings=True)).logits

    def compute(self, node: Node) -> NDArray[Any]:
        """Return the op's result by our formula, because for a single op no build is known whose
        roundings could be copied."""
        found = expect(node, ANY_ENGINE)
        if found.answer is not None:
            return found.answer
        return round_to_type(found.value, node.type)

    def operate(
        self, op: str, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, int | float | str]
    ) -> dict[str, NDArray[Any]]:
        """Return the operation's results, computed in the first of the right ways."""
        found = {
            name: next(iter(ways.values())).value
            for name, ways in operate(op, Call(inputs, params)).items()
        }
        return {
            name: value.astype(np.float32) if value.dtype.kind == "f" else value
            for name, value in found.items()
        }

    def sample(self, request: SampleRequest) -> SampleAnswer:
        return sample(request, self.sampler_vocabulary)

    @property
    def sampler_vocabulary(self) -> SamplerVocabulary | None:
        """Return the model's vocabulary; None without a model, or if we do not have its
        tokenizer."""
        if self.model is None:
            return None
        try:
            return TokenizerWords(self.tokenizer)
        except Unsupported:
            return None

    def guide(
        self, batches: Sequence[Batch], negative: Sequence[Batch], scale: float
    ) -> tuple[F32, ...]:
        both = (self.rows_behind(each) for each in (batches, negative))
        return tuple(guide(first, second, scale) for first, second in zip(*both, strict=True))

    def rows_behind(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        return self.evaluate(Request(batches=tuple(batches))).logits

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if self.loaded.graph.embeds:
            name = self.loaded.graph.name
            raise NotInModel(f"the model ({name}) has no logits, so there is no next token")
        found = self.loaded.greedy(prompt, n)
        self.loaded.release()
        return found

    def schedule(self, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        run = self.make_sbatch(plan) if "sbatch" in plan else self.make_schedule(plan)
        return [run.step(step) for step in plan["steps"]]

    def make_sbatch(self, plan: Mapping[str, Any]) -> SbatchSchedule:
        return SbatchSchedule(plan["sbatch"], vocabulary_size(self.file), plan["n_ubatch"])

    def make_schedule(self, plan: Mapping[str, Any]) -> Schedule:
        n_seq, unified, n_ubatch = plan["n_seq"], plan["unified"], plan["n_ubatch"]
        size = pad_context(plan["n_ctx"] if unified else plan["n_ctx"] // n_seq)
        memory = self.loaded.new_memory(size=size, n_seq=n_seq, unified=unified, n_ubatch=n_ubatch)
        return Schedule(memory, self.loaded.compute, self.loaded.graph.hparams.n_vocab, n_ubatch)

    def save(
        self,
        batches: Sequence[Batch],
        then: Sequence[Batch],
        path: str,
        sequence: int | None = None,
    ) -> tuple[F32, ...]:
        memory = self.loaded.new_memory()
        for batch in batches:
            self.loaded.decode(batch, memory)
        write_tree(Path(path), memory.save(-1 if sequence is None else sequence))
        return tuple(self.loaded.decode(batch, memory) for batch in then)

    def load(
        self, path: str, then: Sequence[Batch], sequence: int | None = None
    ) -> tuple[F32, ...]:
        memory = self.loaded.new_memory()
        if not memory.load(-1 if sequence is None else sequence, read_tree(Path(path))):
            raise InvalidModel(f"{path}: the state has no room in a context of this size")
        return tuple(self.loaded.decode(batch, memory) for batch in then)

    def restore(
        self,
        blob: NDArray[np.uint8],
        ends: NDArray[np.int64],
        sequence: int | None,
        then: Batch,
    ) -> dict[str, Any]:
        """Read the state files, without computing anything."""
        shape, limits = shape_of_model(self.file), limits_of(self.settings)
        return restore_each(
            lambda raw: reason_to_refuse(raw, shape, limits, sequence), list(files_of(blob, ends))
        )

    def close(self) -> None:
        for name in ("loaded", "file"):
            held = self.__dict__.pop(name, None)
            if held is not None:
                held.close()


def vocabulary_size(file: GgufFile) -> int:
    return len(file.metadata["tokenizer.ggml.tokens"].data)


def summary_of(file: GgufFile) -> FileSummary:
    metadata = {key: (v.type_name, plain(v)) for key, v in file.metadata.items()}
    return replace(listing_of(file), metadata=metadata)


def listing_of(file: GgufFile) -> FileSummary:
    """Return a summary of only the tensors, so that a large vocabulary is not read."""
    return FileSummary(
        version=file.version,
        alignment=file.alignment,
        data_offset=file.data_offset,
        metadata={},
        tensors=tuple(
            TensorSummary(
                name=t.name,
                ne=summary.shape(t.ne),
                type=t.type.name,
                offset=t.offset,
                n_bytes=t.n_bytes,
            )
            for t in file.tensors.values()
        ),
    )


def plain(value: Value) -> Any:
    if value.element is None:
        kept: Any = value.data
        return kept if isinstance(kept, str) else summary.scalar(value.type.name, kept)
    if value.element.name == "STR":
        return list(value.data)
    if value.element.name == "ARR":
        return [plain(item) for item in value.data]
    return summary.scalars(value.element.name, value.data)


class TensorRecorder:
    """A probe that records the values of a run, and replaces the values that the request
    contains."""

    def __init__(self, request: Request, hidden: Collection[str] = ()) -> None:
        self.request, self.hidden = request, hidden
        self.step = 0
        self.records: list[TensorRecord] = []

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        site = Site(step=self.step, layer=layer, name=name)
        if self.request.capture and name not in self.hidden:
            self.records.append(TensorRecord(site=site, value=value.copy()))
        return self.request.replace.get(site, value)
