"""Compares the files of a checkpoint with a GGUF file, in three parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.hparams import architecture_name
from lockstep.harness.originals.architectures import ARCHITECTURES, OriginalArchitecture
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.config import OriginalConfig
from lockstep.harness.originals.findings import DifferenceKind, OriginalPart, PartResult
from lockstep.harness.originals.hyperparameters import compare_hyperparameters
from lockstep.harness.originals.tensors import compare_tensors
from lockstep.harness.originals.tokens import compare_tokenizers

ARCHITECTURE = "general.architecture"


@dataclass(frozen=True, kw_only=True)
class OriginalComparison:
    """The result of a comparison: differences and gaps, by part."""

    architecture: str
    parts: tuple[PartResult, ...]

    @property
    def exit_code(self) -> int:
        """Return 0 if the files are the same, 1 if something differs, 3 if a part was not
        compared."""
        if any(part.differences for part in self.parts):
            return 1
        skipped = (each for part in self.parts for each in part.skipped)
        return 0 if all(each.reason.is_expected for each in skipped) else 3


def compare_original(
    folder: Path, model: Path, progress: Callable[[str], object] = lambda _: None
) -> OriginalComparison:
    """Compare a GGUF file with the checkpoint that it was made from.

    Raises EngineError or OSError if a file cannot be read. Raises EngineError as well if there is
    no table for the architecture.
    """
    checkpoint = OriginalCheckpoint(folder)
    architecture = architecture_of(checkpoint.config)
    config = OriginalConfig(flatten_config(checkpoint.config), architecture.defaults)
    with open_model(model) as file:
        name = architecture_name(file.metadata)
        if name != architecture.name:
            keys = PartResult(part=OriginalPart.hyperparameters, compared=1)
            keys.add(DifferenceKind.value, ARCHITECTURE, architecture.name, name)
            return OriginalComparison(architecture=architecture.name, parts=(keys,))
        metadata = plain_metadata(file)
        progress("hyperparameters")
        keys = compare_hyperparameters(checkpoint, architecture, config, metadata)
        n_tokens = len(metadata.get("tokenizer.ggml.tokens", ()))
        tensors = compare_tensors(checkpoint, architecture, config, file, n_tokens, progress)
        progress("tokenizer")
        parts = (keys, tensors, compare_tokenizers(checkpoint, metadata))
        return OriginalComparison(architecture=architecture.name, parts=parts)


def architecture_of(config: Mapping[str, Any]) -> OriginalArchitecture:
    """Return the table of the checkpoint's architecture. Raises InvalidModel if config.json names
    none, and Unsupported if the architecture has no table."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise InvalidModel("config.json: architectures must name the model's class")
    for row in ARCHITECTURES:
        if names[0] in row.models:
            return row
    known = ", ".join(model for row in ARCHITECTURES for model in row.models)
    raise Unsupported(
        f"config.json: no table for the architecture {names[0]!r:.60}; known: {known}"
    )


def flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the language model, which may be a part of a vision model's config."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else dict(config)


def plain_metadata(file: GgufFile) -> dict[str, Any]:
    """Return the metadata values without their types."""
    return {key: value.data for key, value in file.metadata.items()}
