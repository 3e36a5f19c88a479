"""Writing of vectors to the disk: valid files stay, all other files are rewritten."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import NAME, ManifestEntry, manifest_bytes
from lockstep.golden.schemas import violations
from lockstep.golden.store import (
    MAX_JSON,
    BrokenGolden,
    canonical,
    inside,
    replace_file,
    sha256,
    shapes_of,
    tensor_bytes,
)
from lockstep.golden.suites.base import Golden, Vectors

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Made:
    """Vectors to write to the disk. path: the path without a suffix."""

    path: str
    kind: str
    vectors: Vectors
    model: str | None  # sha256, unless a recipe makes the model


def write(
    root: Path,
    old: Sequence[ManifestEntry],
    made: Sequence[Made],
    kept: Collection[str],
    progress: Progress,
) -> list[Path]:
    """Write vectors and manifest; return the changed files.

    kept: paths of old files that stay, unless they are made again; all other old files are deleted.
    Raises BrokenGolden before anything is written.
    """
    made = [held_or_made(root, old, each, progress) for each in made]
    new = [pair for each in made for pair in files_of(each)]
    written = {entry.path for entry, _ in new}
    if len(written) != len(new):
        raise BrokenGolden("two of the models given have the same name; rename one of the files")
    for entry, _ in new:
        inside(root, entry.path)
    changed = [root / entry.path for entry, raw in new if replace_file(root / entry.path, raw)]
    others = [entry for entry in old if entry.path not in written and entry.path in kept]
    entries = [*others, *(entry for entry, _ in new)]
    if replace_file(root / NAME, manifest_bytes(entries)):
        changed.append(root / NAME)
    return changed + remove_orphans(root, old, entries)


def held_or_made(root: Path, old: Sequence[ManifestEntry], made: Made, progress: Progress) -> Made:
    """Return the vectors on the disk if the oracle still agrees, else the new vectors."""
    entries = {entry.path: entry for entry in old}
    entry = entries.get(f"{made.path}.json")
    if entry is None or entry.kind != made.kind:
        return made
    try:
        held = load_vectors(root, entry, entries)
        why = Golden.member(made.kind)().why_outdated(held, made.vectors)
    except BrokenGolden as error:
        why = str(error)
    if not why:
        return replace(made, vectors=held)
    progress(f"{made.path} is written anew: {why}")
    return made


def remove_orphans(
    root: Path, old: Sequence[ManifestEntry], new: Sequence[ManifestEntry]
) -> list[Path]:
    """Delete the files that the generator once wrote but no longer makes."""
    gone = sorted({entry.path for entry in old} - {entry.path for entry in new})
    paths = [inside(root, name) for name in gone]
    for path in paths:
        path.unlink(missing_ok=True)
    return paths


def files_of(made: Made) -> Iterator[tuple[ManifestEntry, bytes]]:
    """Yield the files of one set of vectors; raises BrokenGolden if they would not verify."""
    document = dict(made.vectors.document)
    if made.vectors.tensors:
        name, raw = f"{made.path}.safetensors", tensor_bytes(made.vectors.tensors)
        document["tensors"] = {"file": name, "entries": shapes_of(made.vectors.tensors)}
        yield entry_of(name, raw, made, "tensors", None), raw
    wrong = [
        *violations(made.kind, document),
        *Golden.member(made.kind)().inconsistencies(made.vectors),
    ]
    if wrong:
        raise BrokenGolden(f"the oracle's answer gives no valid {made.path}: {wrong[0]}")
    raw = canonical(document)
    if len(raw) > MAX_JSON:
        raise BrokenGolden(
            f"{made.path}.json would take {len(raw):,} bytes; goldens are for small models "
            f"(at most {MAX_JSON:,})"
        )
    yield entry_of(f"{made.path}.json", raw, made, made.kind, made.kind), raw


def entry_of(path: str, raw: bytes, made: Made, kind: str, schema: str | None) -> ManifestEntry:
    return ManifestEntry(
        path=path,
        sha256=sha256(raw),
        bytes=len(raw),
        kind=kind,
        schema=schema,
        model=made.model,
    )
