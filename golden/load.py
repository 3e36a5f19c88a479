"""Loader of vectors. Every file is compared with the manifest before it is used."""

from collections.abc import Iterator
from pathlib import Path

from lockstep.golden.manifest import ManifestEntry
from lockstep.golden.schemas import violations
from lockstep.golden.store import (
    MAX_JSON,
    MAX_TENSORS,
    BrokenGolden,
    Tensors,
    canonical,
    inside,
    parse_json,
    parse_tensors,
    read,
    sha256,
    shapes_of,
)
from lockstep.golden.suites.base import Golden, Vectors


def checked_bytes(root: Path, entry: ManifestEntry) -> bytes:
    """Return the file's bytes; raises BrokenGolden if they do not match the manifest."""
    raw = read(inside(root, entry.path), MAX_TENSORS if entry.kind == "tensors" else MAX_JSON)
    if len(raw) != entry.bytes or sha256(raw) != entry.sha256:
        raise BrokenGolden(
            f"{entry.path} was changed by hand: sha256 and length are not those of the manifest"
        )
    return raw


def load_vectors(root: Path, entry: ManifestEntry, entries: dict[str, ManifestEntry]) -> Vectors:
    """Return the document of `entry` with its tensors; raises BrokenGolden at the first error."""
    raw = checked_bytes(root, entry)
    document = parse_json(raw, entry.path)
    wrong = next(violations(entry.kind, document), None)
    if wrong is not None:
        raise BrokenGolden(f"{entry.path} breaks its schema at {wrong}")
    if canonical(document) != raw:
        raise BrokenGolden(f"{entry.path} was not written by the generator: its form differs")
    tensors: Tensors = {}
    if "tensors" in document:
        name = document["tensors"]["file"]
        if name != f"{entry.path.removesuffix('.json')}.safetensors":
            raise BrokenGolden(f"{entry.path} names {name!r}, which is not the file beside it")
        if name not in entries or entries[name].kind != "tensors":
            raise BrokenGolden(f"{entry.path} names {name!r}, which the manifest does not list")
        tensors = parse_tensors(checked_bytes(root, entries[name]), name)
        check_shapes(document["tensors"]["entries"], tensors, name)
    vectors = Vectors(document=document, tensors=tensors)
    for text in Golden.member(entry.kind)().inconsistencies(vectors):
        raise BrokenGolden(f"{entry.path} contradicts itself: {text}")
    return vectors


def check_shapes(declared: dict[str, dict[str, object]], tensors: Tensors, name: str) -> None:
    found = shapes_of(tensors)
    if found != declared:
        raise BrokenGolden(f"{name} holds {found}, but its document says {declared}")


def documents(entries: list[ManifestEntry]) -> Iterator[ManifestEntry]:
    return (entry for entry in entries if entry.kind != "tensors")
