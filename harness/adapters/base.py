"""Questions that the harness asks an engine. Oracle and subject are roles, not classes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.node import Node
from lockstep.engine.registry import Registered
from lockstep.harness.records import (
    Captured,
    DrawAnswer,
    DrawRequest,
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
)


class Adapter(Registered):
    """An engine with one model and one preset. Override the questions that it can answer.

    An engine refuses an input with an `EngineError`. Any other exception is a bug of the engine or
    of its adapter, and is reported as a crash. Before anything is compared, harness.answers checks
    that each answer is as described below.
    """

    isolated = False  # True: the engine needs its own process (harness.context.runner starts it)
    # distribution and module, if any version can be requested as NAME@VERSION
    package: tuple[str, str] | None = None

    def __init__(self, model: Path | None, settings: Settings) -> None:
        self.model = model
        self.settings = settings

    @classmethod
    def check_libraries(cls) -> None:
        """Check that the adapter was written for the installed libraries. Raises Unsupported if
        not."""

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version="unknown", settings=self.settings)

    def metadata(self) -> FileSummary:
        raise Unsupported(f"{self.name} does not show how it reads a file")

    def parse(
        self, blob: NDArray[np.uint8], ends: NDArray[np.int64], way: str
    ) -> dict[str, NDArray[Any] | dict[int, str]]:
        """Parse many GGUF files, one by one, in one of the engine's ways to read a file (see
        parts.parsing). The answer also names the files that killed the reader, stopped it or filled
        its memory."""
        raise Unsupported(f"{self.name} does not parse many files")

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        raise Unsupported(f"{self.name} does not tokenize")

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        raise Unsupported(f"{self.name} does not detokenize")

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return every weight of these whole blocks as a flat array."""
        raise Unsupported(f"{self.name} does not expose its weight decoders")

    def multiply(
        self, type_name: str, raw: NDArray[np.uint8], x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Multiply x by a matrix, given as raw rows with as many weights as x has columns. x:
        (tokens, columns); result: (tokens, rows)."""
        raise Unsupported(f"{self.name} does not expose its matrix product")

    def time_dequantize(
        self, type_name: str, raw: NDArray[np.uint8], seconds: float, threads: int
    ) -> float:
        """Return the seconds that all these blocks take, if each of `threads` threads decodes for
        `seconds`. Two independent threads halve the result."""
        raise Unsupported(f"{self.name} cannot be timed")

    def name_tensors(self, metadata: bytes) -> tuple[TensorSummary, ...]:
        """Return the tensors of a model with this metadata, which is a GGUF file without
        tensors."""
        raise Unsupported(f"{self.name} does not name the tensors of a model")

    def evaluate(self, request: Request) -> Evaluation:
        """Return the logits of each batch, (outputs, vocabulary), and a trace if `request.capture`.

        `request.replace`: replacement values at some sites; the engine still shows its own values.
        A run in which a class ignores these values is not compared. If a class can replace values
        only at some sites, it names all other sites in `fixed` of its EngineInfo. With
        `request.embeddings`, return the rows that `embed` returns. For a model without logits, the
        engine is asked with and without this flag, and raises Unsupported for results that the
        model does not have.
        """
        raise Unsupported(f"{self.name} does not evaluate batches")

    def embed(self, batches: Sequence[Batch]) -> tuple[NDArray[np.float32], ...]:
        """Return the embeddings of each batch, (tokens, width), for a model without logits. If the
        metadata names a pooling, return (sequences, width)."""
        raise Unsupported(f"{self.name} does not give embeddings")

    def capture(
        self,
        batches: Sequence[Batch],
        fault: Fault | None,
        emit: Callable[[Nodes], None],
        *,
        embeddings: bool = False,
        values: bool = True,
    ) -> Captured:
        """Decode the batches on an empty cache, and emit every node that computes something.

        embeddings: True to compute embeddings even if the model has logits; values: True to emit
        the values of computed sources too. A capture without these values is faster. Results are
        always emitted. The receiver reads the arrays before `emit` returns, because they may then
        be reused.
        """
        raise Unsupported(f"{self.name} does not show its graph")

    def time_capture(self, batches: Sequence[Batch]) -> dict[str, float]:
        """Return the seconds of all batches except the first (or of the only one), measured in
        several ways. plain: without a callback; callback: with an empty Python callback; capture:
        with a capture; copy: only copying the captured bytes."""
        raise Unsupported(f"{self.name} does not show its graph")

    def compute(self, node: Node) -> NDArray[Any]:
        """Return the result of one op alone, (ne3, ne2, ne1, ne0), from the sources that the node
        holds."""
        raise Unsupported(f"{self.name} does not compute single ops")

    def operate(
        self, op: str, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, int | float | str]
    ) -> dict[str, NDArray[Any]]:
        """Return the named results of a fused operation of engines' interfaces
        (engine.ops.fused)."""
        raise Unsupported(f"{self.name} does not compute fused operations")

    def sample(self, request: SampleRequest) -> SampleAnswer:
        """Return the candidates after each stage of a chain, for each row of logits. A stage that
        draws a token uses the request's draw, which llama.cpp would get from its seed."""
        raise Unsupported(f"{self.name} does not show its samplers")

    def draw(self, request: DrawRequest) -> DrawAnswer:
        """Return one next token that a chain draws. Only servers get this question."""
        raise Unsupported(f"{self.name} is not a server")

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Return the ids of `n` tokens after the prompt, each the argmax of the logits before it.

        Generation does not stop at an end-of-text token, because a comparison needs all `n` tokens.
        """
        raise Unsupported(f"{self.name} does not generate")

    def logprobs(
        self, prefixes: Sequence[Sequence[int] | bytes], k: int
    ) -> list[list[tuple[int | bytes, float]]]:
        """Return the k likeliest next tokens of each prefix with their log-probabilities, the
        likeliest first.

        A prefix is given by its ids, or by its text if the engine declares `text_only`. A token is
        its id, or its text if the engine knows no ids. A list may have fewer than k tokens. All
        values of a prefix may be off by the same constant.
        """
        raise Unsupported(f"{self.name} does not list candidates")

    def generate(self, prompt: bytes, n: int) -> bytes:
        """Return the text of `n` greedy tokens after the prompt. It may end with an end-of-text
        token."""
        raise Unsupported(f"{self.name} does not generate text")

    def schedule(self, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the result of each step of a schedule, in a new context.

        plan: `n_ctx`, `n_ubatch`, `n_seq`, `unified` and `steps`: `["decode", rows]` with rows of
        token, position, sequences, output; `["rm", seq, p0, p1]`, `["cp", from, to, p0, p1]`,
        `["keep", seq]`, `["add", seq, p0, p1, delta]`, `["div", seq, p0, p1, d]`, `["clear"]`,
        `["save", seq]` and `["load", seq, k]`, which loads the result of the k-th save. Sequence -1
        means everything. `sbatch` is present if the context still has llama_sbatch, and names the
        split of its batches: "simple", "equal" or "seq" (recurrent, with pooled embeddings).

        Each answer: `code`; `pos`, the smallest and largest position of each sequence; `ubatches`
        (equal, n_seqs, rows) in the order in which they were formed; `slots`, the cells that the
        engine looked at for them; `order`, the tokens with outputs in the order in which they were
        computed; `logits`: (outputs, vocabulary). None stands for a value, or a part of it, that
        the engine does not show.
        """
        raise Unsupported(f"{self.name} does not run schedules")

    def guide(
        self, batches: Sequence[Batch], negative: Sequence[Batch], scale: float
    ) -> tuple[NDArray[np.float32], ...]:
        """Return the guided logits of each batch, (outputs, vocabulary), up to a constant in each
        row.

        `negative` has as many batches and outputs, but after another prompt.
        """
        raise Unsupported(f"{self.name} has no guidance")

    def save(
        self,
        batches: Sequence[Batch],
        then: Sequence[Batch],
        path: str,
        sequence: int | None = None,
    ) -> tuple[NDArray[np.float32], ...]:
        """Decode the batches on an empty cache, write its state to a new file, and decode `then`.

        Returns the logits of each batch of `then`, (outputs, vocabulary). sequence: the sequence
        whose state is written; None for all sequences. No other path is written.
        """
        raise Unsupported(f"{self.name} does not save its state")

    def load(
        self, path: str, then: Sequence[Batch], sequence: int | None = None
    ) -> tuple[NDArray[np.float32], ...]:
        """Load a file that `save` wrote, decode `then` on this state alone, and return the logits
        of each batch, (outputs, vocabulary)."""
        raise Unsupported(f"{self.name} does not load a state")

    def restore(
        self,
        blob: NDArray[np.uint8],
        ends: NDArray[np.int64],
        sequence: int | None,
        then: Batch,
    ) -> dict[str, Any]:
        """Read many state files of llama.cpp, one by one, each into an empty cache (see
        parts.restoring). The answer also names the files that killed the reader."""
        raise Unsupported(f"{self.name} does not read llama.cpp's state files")

    def borrow(self, session: Any) -> None:
        """Use this open session of llama.cpp in place of a new one."""

    def close(self) -> None:
        """Release the engine's resources."""
