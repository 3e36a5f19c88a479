"""The list of all vectors with their hashes, and a hash of the list itself."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.golden.schemas import violations
from lockstep.golden.store import BrokenGolden, canonical, parse_json, read, sha256

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestEntry:
    """A file listed in the manifest. `model`: the sha256 of a model without a recipe, whose file
    the user has."""

    path: str
    sha256: str
    bytes: int
    kind: str  # "tensors", or the suite of a document
    schema: str | None
    model: str | None


def manifest_bytes(entries: Sequence[ManifestEntry]) -> bytes:
    """Return the manifest's bytes. `seal`: the hash of its other content, which reveals an edit by
    hand."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "files": [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.path)],
    }
    return canonical({**body, "seal": sha256(canonical(body))})


def read_manifest(root: Path) -> list[ManifestEntry]:
    """Read the manifest. Raises BrokenGolden if the file is missing, edited or not a manifest."""
    raw = read(root / NAME, limit=1 << 20)
    document = parse_json(raw, NAME)
    wrong = next(violations("manifest", document), None)
    if wrong is not None:
        raise BrokenGolden(f"{NAME} breaks its schema: {wrong}")
    entries = [ManifestEntry(**row) for row in document["files"]]
    if raw != manifest_bytes(entries):
        raise BrokenGolden(f"{NAME} was not written by the generator: its seal or form is wrong")
    if len({entry.path for entry in entries}) != len(entries):
        raise BrokenGolden(f"{NAME} lists a file twice")
    return entries
