"""Copies of the committed goldens that tests may damage, and files outside the repository."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.golden.fetch import NAMES
from lockstep.golden.manifest import NAME, manifest_bytes, read_manifest
from lockstep.golden.store import DEFAULT_ROOT, canonical, sha256

STORIES = Path(__file__).parents[2].parent / "shared" / "models" / "stories260K.gguf"
STORIES_PATHS = ("logits/stories260K", "tokens/stories260K")
# goldens of llama.cpp's own vocabularies; test_token_vectors.py tests them if the files are
# available
FETCHED_PATHS = tuple(f"tokens/{name}" for name in NAMES)
NO_STORIES = "no sibling folder shared/ with models/stories260K.gguf: its goldens were not replayed"

needs_oracle = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None,
    reason="llama_cpp is not installed: the goldens were not compared with its answers",
)
needs_stories = pytest.mark.skipif(not STORIES.exists(), reason=NO_STORIES)


FEW = (  # some of each kind, for tests that read whole folders repeatedly
    *("logits/f32", "logits/f16", "logits/q8_0", "logits/moe", "tokens/f32", *STORIES_PATHS),
    *(
        "dequant/q8_0",
        "dequant/q4_0",
        "dot/q4_k",
        "tokens/synth-bert",
        "ops/softmax_rows",
        "samplers/top_p",
    ),
)


def all_copied(folder: Path) -> Path:
    return shutil.copytree(DEFAULT_ROOT, folder / "v1")


def copied(folder: Path) -> Path:
    """Return an intact folder with few of the vectors."""
    root = folder / "v1"
    kept = [e for e in read_manifest(DEFAULT_ROOT) if e.path.rsplit(".", 1)[0] in FEW]
    for entry in kept:
        (root / entry.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DEFAULT_ROOT / entry.path, root / entry.path)
    (root / NAME).write_bytes(manifest_bytes(kept))
    return root


def edit_json(path: Path, edit: Callable[[Any], Any]) -> None:
    """Edit a file and write it in canonical form, so that only the edit is wrong."""
    document = json.loads(path.read_text())
    edit(document)
    path.write_bytes(canonical(document))


def reseal(root: Path) -> None:
    """Write a new manifest for the files, so that all hashes match."""
    entries = []
    for entry in read_manifest(root):
        raw = (root / entry.path).read_bytes()
        entries.append(replace(entry, sha256=sha256(raw), bytes=len(raw)))
    (root / NAME).write_bytes(manifest_bytes(entries))
