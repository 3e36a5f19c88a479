"""Explains a user's embeddings by the steps in which the user's pipeline deviates from the
checkpoint's.

Each embedding is compared with the checkpoint's hidden states under every combination of prompt,
length, pooling and normalisation. The limit is twice the difference between the engine and the
checkpoint on the same tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.hparams import architecture_name
from lockstep.engine.quants.base import F32
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import NoAnswer, no_answer
from lockstep.harness.foreign.building import is_added
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.findings import (
    DifferenceKind,
    OriginalPart,
    PartResult,
    SkipReason,
)
from lockstep.harness.originals.hyperparameters import POOLINGS
from lockstep.harness.originals.pipeline import (
    TRAITS,
    EmbeddedText,
    Pipeline,
    cut,
    pipeline_of,
    read_embeddings,
    variants,
)
from lockstep.harness.parallel.children import Say, result_of
from lockstep.harness.records import EXACT, Answered, Request
from lockstep.harness.runs.original_run import ENGINE, RESULTS, RunOptions

HIDDEN = "result_embd"  # name of the checkpoint's values for each token
MOST_TOKENS = 8192
CELLS = 256


@dataclass(frozen=True, kw_only=True)
class ExplainedText:
    """The explanation of a text's embedding. `other` are the deviating traits of the pipeline.
    `found` is None if no combination of traits yields the embedding."""

    right: Pipeline
    found: Pipeline | None
    other: tuple[str, ...]
    # largest difference of an element from the embedding of the checkpoint's own pipeline
    distance: float
    allowed: float


@dataclass(kw_only=True)
class TextJudge:
    """The two engines with which a text's embedding is explained."""

    original: Session
    engine: Session
    tokenizer: Tokenizer
    length: int  # maximum number of tokens that the model supports

    @cached_property
    def n_after(self) -> int:
        return len(self.tokenizer.around()[1])

    def ids(self, text: str, pipeline: Pipeline) -> list[int]:
        whole = self.tokenizer.encode((pipeline.prompt + text).encode())
        return cut(whole, self.n_after, pipeline.length)

    def hidden_states(self, ids: Sequence[int]) -> F32:
        """Return the checkpoint's hidden states: (tokens, width)."""
        request = Request(batches=(Batch.of(ids),), capture=True, embeddings=True)
        trace = ask(self.original, "evaluate", request).trace
        rows = [each.value for each in trace.records if each.site.name == HIDDEN]
        if not rows:
            raise Unsupported(f"{self.original.name} shows no {HIDDEN}")
        found: F32 = rows[0]
        return found

    def apart(self, ids: Sequence[int], pipeline: Pipeline, hidden: F32) -> float:
        """Return the difference between the engine's embedding and the checkpoint's, for the same
        tokens."""
        row = np.asarray(ask(self.engine, "embed", (Batch.of(ids),))[0], np.float64).reshape(-1)
        if row.size != hidden.shape[1]:
            raise Unsupported("the file names no pooling")
        truth = replace(pipeline, normalised=False).embed(hidden)
        if pipeline.normalised:
            row, truth = row / np.linalg.norm(row), truth / np.linalg.norm(truth)
        step = float(np.finfo(np.float32).eps * np.abs(truth).max())
        return max(float(np.abs(row - truth).max()), step)

    def explain(self, text: EmbeddedText, right: Pipeline, pooling: str) -> ExplainedText:
        """Return the smallest set of deviating traits that gives the embedding. `pooling` is the
        file's pooling."""
        states: dict[tuple[int, ...], F32] = {}
        limits: dict[bool, float] = {}
        distance = np.inf
        for other, pipeline in variants(right, self.length):
            ids = tuple(self.ids(text.text, pipeline))
            if ids not in states:
                states[ids] = self.hidden_states(ids)
            normed = pipeline.normalised
            if normed not in limits:  # the first pipeline of a kind has the right pipeline's tokens
                same = replace(right, pooling=pooling, normalised=normed)
                limits[normed] = 2 * self.apart(ids, same, states[ids])
            off = float(np.abs(text.embedding - pipeline.embed(states[ids])).max())
            distance = off if not other else distance
            if off <= limits[normed]:
                return ExplainedText(
                    right=right,
                    found=pipeline,
                    other=tuple(other),
                    distance=distance,
                    allowed=limits[right.normalised],
                )
        return ExplainedText(
            right=right, found=None, other=(), distance=distance, allowed=limits[right.normalised]
        )


def ask(session: Session, question: str, *args: Any) -> Any:
    """Return the answer to a question. Raises NoAnswer."""
    outcome = session.ask(question, *args)
    if not isinstance(outcome, Answered):
        raise no_answer(session.name, question, outcome)
    return outcome.value


def compare_texts(
    folder: Path,
    model: Path,
    texts: Path,
    options: RunOptions,
    progress: Callable[[str], None],
) -> PartResult:
    """Explain the embeddings in a file. Raises InvalidModel, OSError or RuntimeError."""
    result = PartResult(part=OriginalPart.embeddings)
    if not is_added(ENGINES[ENGINE]):
        result.skip(SkipReason.no_environment, RESULTS)
        return result
    checkpoint = OriginalCheckpoint(folder)
    width = checkpoint.config.get("hidden_size")
    given = read_embeddings(texts, width if type(width) is int else 0)
    try:
        work = partial(explain_all, checkpoint, model, given, options)
        note_texts(result, result_of(work, progress))
    except (BadInput, NoAnswer, Unsupported) as error:
        result.skip(SkipReason.no_answer, RESULTS, str(error))
    return result


def explain_all(
    checkpoint: OriginalCheckpoint,
    model: Path,
    texts: Sequence[EmbeddedText],
    options: RunOptions,
    say: Say,
) -> None:
    """Send progress as texts, and at the end a list of ExplainedText."""
    with open_model(model) as file:
        metadata = {key: value.data for key, value in file.metadata.items()}
        prefix = architecture_name(file.metadata)
        tokenizer = tokenizer_of(file.metadata)
    length = min(int(metadata[f"{prefix}.context_length"]), MOST_TOKENS)
    pooling = {number: name for name, number in POOLINGS.items()}.get(
        metadata.get(f"{prefix}.pooling_type", 0)
    )
    if pooling is None:
        raise Unsupported("the file names no pooling of " + ", ".join(POOLINGS))
    cells = -(-length // CELLS) * CELLS
    settings = replace(EXACT, n_ctx=cells, n_ubatch=cells)
    runner, name = Runner(time_limit=options.time_limit), f"{ENGINE}:{checkpoint.folder.resolve()}"
    with (
        runner.open(name, model, settings) as original,
        runner.open(options.engine, model, settings) as engine,
    ):
        judge = TextJudge(original=original, engine=engine, tokenizer=tokenizer, length=length)
        found = []
        for number, text in enumerate(texts, 1):
            say(f"text {number} of {len(texts)}")
            right = pipeline_of(checkpoint, length, text.prompt)
            if right is None:
                raise Unsupported("the checkpoint names no pooling of " + ", ".join(POOLINGS))
            found.append(judge.explain(text, right, pooling))
    say(found)


def note_texts(result: PartResult, found: Sequence[ExplainedText]) -> None:
    """Add the deviation of each text to the result."""
    result.compared = len(found)
    for number, each in enumerate(found, 1):
        place, detail = f"text {number}", {"error": each.distance, "allowed": each.allowed}
        for trait in each.other:
            right, got = (getattr(p, trait) for p in (each.right, each.found))
            result.add(TRAITS[trait], place, right, got, **detail)
        if each.found is None:
            result.add(DifferenceKind.embedding, place, None, None, **detail)
