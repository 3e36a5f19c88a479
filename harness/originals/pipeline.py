"""The steps from a text to its embedding that a checkpoint describes for sentence-transformers.

A GGUF file holds only the pooling. The caller of an engine must add prompts, truncate texts and
normalise embeddings.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.regular_file import read_regular
from lockstep.engine.quants.base import F32
from lockstep.harness.originals.checkpoint import MAX_TOKENIZER_BYTES, OriginalCheckpoint
from lockstep.harness.originals.findings import DifferenceKind
from lockstep.harness.originals.hyperparameters import POOLINGS, pooling_of

MAX_TEXTS = 64
POOL: dict[str, Callable[[F32], NDArray[np.float64]]] = {
    "mean": lambda rows: rows.mean(axis=0, dtype=np.float64),
    "cls": lambda rows: rows[0].astype(np.float64),
    "lasttoken": lambda rows: rows[-1].astype(np.float64),
}
USUAL_LENGTHS = (128, 256, 512)  # usual maximum lengths in tokens


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The steps from a text to its embedding. `length` is the maximum number of tokens that the
    model reads. `prompts` are all prompts of the checkpoint."""

    prompt: str = ""
    prompts: tuple[str, ...] = ()
    length: int
    pooling: str
    normalised: bool

    def embed(self, rows: F32) -> NDArray[np.float64]:
        """Pool the rows of tokens, (tokens, width) to (width,), and normalise the result if the
        pipeline does."""
        found = POOL[self.pooling](rows)
        norm = np.linalg.norm(found)
        return found / norm if self.normalised and norm else found


TRAITS = {
    "prompt": DifferenceKind.prompt,
    "length": DifferenceKind.truncation,
    "pooling": DifferenceKind.pooling,
    "normalised": DifferenceKind.normalisation,
}


@dataclass(frozen=True, kw_only=True)
class EmbeddedText:
    """A line of a user's file. `prompt` is the name of one of the checkpoint's prompts."""

    text: str
    embedding: F32
    prompt: str = ""


def read_embeddings(path: Path, width: int) -> list[EmbeddedText]:
    """Return the lines of a file with a JSON object in each line. Raises InvalidModel or
    OSError."""
    lines = read_regular(path, MAX_TOKENIZER_BYTES).splitlines()
    found = []
    for number, line in enumerate(filter(None, lines[: MAX_TEXTS + 1]), 1):
        try:
            row = json.loads(line)
            numbers = row["embedding"]
            if not isinstance(numbers, list) or not all(type(n) in (int, float) for n in numbers):
                raise ValueError("the embedding is not a list of numbers")
            values = np.array(numbers, np.float32)
            row["text"].encode()  # half of a surrogate pair is no text
            text = EmbeddedText(text=row["text"], embedding=values, prompt=row.get("prompt") or "")
            right = values.shape == (width,) and np.isfinite(values).all()
            if not right or not isinstance(text.text, str) or not isinstance(text.prompt, str):
                raise ValueError(f"expected a text and {width} finite numbers")
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
            AttributeError,
        ) as error:
            raise InvalidModel(f"{path}: line {number}: {error!s:.200}") from None
        found.append(text)
    if not 0 < len(found) <= MAX_TEXTS:
        raise InvalidModel(f"{path} has {len(lines)} lines; expected 1 to {MAX_TEXTS}")
    return found


def pipeline_of(checkpoint: OriginalCheckpoint, length: int, prompt: str) -> Pipeline | None:
    """Return the pipeline of sentence-transformers; None if the checkpoint does not describe one.

    `length` is the maximum number of tokens that the model supports. `prompt` is the name of a
    prompt; "" means the default. Raises InvalidModel for an unknown prompt or a malformed file.
    """
    number = pooling_of(checkpoint)
    if number is None:
        return None
    pooling = next(name for name, value in POOLINGS.items() if value == number)
    config = checkpoint.read_object("config_sentence_transformers.json")
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise InvalidModel("config_sentence_transformers.json: prompts must be an object")
    name = prompt or config.get("default_prompt_name")
    if prompt and prompt not in prompts:
        raise InvalidModel(f"the checkpoint has no prompt {prompt!r:.60}")
    most = checkpoint.read_object("sentence_bert_config.json").get("max_seq_length")
    modules = checkpoint.read_json("modules.json")
    kinds = [str(row.get("type", "")).rpartition(".")[2] for row in modules]
    return Pipeline(
        prompt=str(prompts.get(name) or ""),
        prompts=tuple(filter(None, map(str, prompts.values()))),
        length=min(most, length) if type(most) is int else length,
        pooling=pooling,
        normalised="Normalize" in kinds,
    )


def variants(right: Pipeline, length: int) -> Iterator[tuple[list[str], Pipeline]]:
    """Yield every pipeline that differs from `right`, with the list of traits in which it differs.
    Pipelines with few differences come first."""
    shorter = [each for each in USUAL_LENGTHS if each < length]
    tried: dict[str, tuple[Any, ...]] = {
        "prompt": (right.prompt, "", *right.prompts),
        "length": (right.length, length, *shorter),
        "pooling": (right.pooling, *POOLINGS),
        "normalised": (right.normalised, not right.normalised),
    }
    choices = {trait: dict.fromkeys(values) for trait, values in tried.items()}
    made = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    other = [[t for t in choices if each[t] != getattr(right, t)] for each in made]
    for traits, values in sorted(zip(other, made, strict=True), key=lambda pair: len(pair[0])):
        yield traits, replace(right, **values)


def cut(ids: Sequence[int], n_after: int, length: int) -> list[int]:
    """Cut a text's ids to `length`, but keep the last `n_after` ids, which the tokenizer adds after
    every text."""
    if len(ids) <= length:
        return list(ids)
    end = len(ids) - n_after
    return [*ids[: length - n_after], *ids[end:]]
