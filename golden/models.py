"""The models of vectors: made from a recipe, or found among given files."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.choices import choices
from lockstep.engine.errors import EngineError
from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import read_manifest
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.harness.report.header import sha256_of
from lockstep.harness.synth.llama import LlamaRecipe, tensors, write_llama


def model_row(name: str, path: Path, recipe: LlamaRecipe | None) -> dict[str, Any]:
    """Return the name, hash, size and recipe of a model for a document."""
    return {
        "name": name,
        "sha256": sha256_of(path),
        "bytes": path.stat().st_size,
        "recipe": None if recipe is None else recipe_row(recipe),
    }


def recipe_row(recipe: LlamaRecipe) -> dict[str, Any]:
    """Return the fields with values other than their defaults, so that a new field changes no
    manifest."""
    always = ("seed", "quant")
    return {
        field.name: getattr(recipe, field.name)
        for field in dataclasses.fields(recipe)
        if field.name in always or getattr(recipe, field.name) != field.default
    }


class Shelf:
    """Finds model files by their hash; models from recipes are written into `folder` once.

    instead: a file that is used for every model, whatever its hash.
    """

    def __init__(self, given: Sequence[Path], folder: Path, instead: Path | None = None) -> None:
        self.folder, self.instead = folder, instead
        self.by_hash = {hash_of(path): path for path in given}

    def find(self, row: Mapping[str, Any]) -> Path | None:
        """Return the model's file, or None if it has no recipe and was not given.

        Raises BrokenGolden if the recipe makes a different file.
        """
        if self.instead is not None:
            return self.instead
        if row["sha256"] not in self.by_hash and row["recipe"] is not None:
            path = self.folder / f"{row['sha256']}.gguf"
            write_model(row, path)
            self.by_hash[row["sha256"]] = path
        return self.by_hash.get(row["sha256"])


def hash_of(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        there = [p.name for p in path.parent.glob("*.gguf")] if not path.exists() else []
        near = f" {choices(path.name, sorted(there))}" if there else ""
        raise BrokenGolden(f"{path}: {error.strerror or error}{near}") from error


def write_model(row: Mapping[str, Any], path: Path) -> None:
    try:
        recipe = LlamaRecipe(**row["recipe"])
        weights = sum(int(np.prod(ne)) for _, ne, _, _ in tensors(recipe))
        if weights > 2 * row["bytes"]:  # every format needs at least half a byte for a weight
            raise BrokenGolden(f"the recipe of {row['name']} does not fit its size in bytes")
        write_llama(recipe, path)
    except (EngineError, TypeError, ValueError, ArithmeticError) as error:
        raise BrokenGolden(f"the recipe of {row['name']} makes no model: {error}") from error
    if sha256_of(path) != row["sha256"]:
        raise BrokenGolden(
            f"the recipe of {row['name']} no longer makes the model that its vectors belong to: "
            f"expected sha256 {row['sha256']}, got {sha256_of(path)}"
        )


def write_models(folder: Path, root: Path = DEFAULT_ROOT) -> list[Path]:
    """Write every model that has a recipe as NAME.gguf, for engines that read files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Mapping[str, Any]] = {}
    entries = {entry.path: entry for entry in read_manifest(root)}
    for entry in entries.values():
        if entry.kind in ("tokens", "vocabulary", "logits") and entry.model is None:
            row = load_vectors(root, entry, entries).document["model"]
            rows[row["name"]] = row
    paths = []
    for name, row in sorted(rows.items()):
        paths.append(folder / f"{name}.gguf")
        write_model(row, paths[-1])
    return paths
