"""Verification that the goldens are unchanged since their generation, and that the oracle still
agrees."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.golden.acid_models import bytes_held, problems_of
from lockstep.golden.load import checked_bytes, documents, load_vectors
from lockstep.golden.manifest import NAME, ManifestEntry, read_manifest
from lockstep.golden.models import hash_of
from lockstep.golden.replay import replay
from lockstep.golden.store import DEFAULT_ROOT, MAX_TOTAL, BrokenGolden, inside
from lockstep.harness.records import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A problem with a file. path: the file's path within the folder; text: one sentence with the
    problem and its remedy."""

    path: str
    text: str

    def __str__(self) -> str:
        return self.text


def verify(root: Path = DEFAULT_ROOT) -> list[Problem]:
    """Return every problem with the folder, without running an engine."""
    try:
        entries = read_manifest(root)
    except BrokenGolden as error:
        text = f"{error}; restore the folder, or write it anew with `lockstep golden regen`"
        return [Problem(path=NAME, text=text)]
    found = [*files(root, entries), *orphans(root, entries)]
    if root == DEFAULT_ROOT:
        acid = [Problem(path=f"acid/{name}", text=text) for name, text in problems_of()]
        found += [*acid, *(() if acid else whole(entries))]
    return found


def files(root: Path, entries: Sequence[ManifestEntry]) -> Iterator[Problem]:
    by_path = {entry.path: entry for entry in entries}
    used: set[str] = set()
    broken: set[str] = set()
    for entry in entries:
        try:
            if not inside(root, entry.path).exists():
                raise BrokenGolden(f"{entry.path} is missing")
            checked_bytes(root, entry)
        except BrokenGolden as error:
            broken.add(entry.path)
            yield broken_file(entry, error)
    for entry in documents(list(entries)):
        payload = str(Path(entry.path).with_suffix(".safetensors").as_posix())
        used.add(payload)
        if broken & {entry.path, payload}:
            continue  # already reported
        try:
            load_vectors(root, entry, by_path)
        except BrokenGolden as error:
            yield broken_file(entry, error)
    for entry in entries:
        if entry.kind == "tensors" and entry.path not in used:
            text = f"{entry.path} belongs to no document; run `lockstep golden regen`"
            yield Problem(path=entry.path, text=text)


def broken_file(entry: ManifestEntry, error: BrokenGolden) -> Problem:
    what = "lockstep golden regen" + ("" if entry.model is None else " MODEL")
    return Problem(path=entry.path, text=f"{error}; restore it, or run `{what}`")


def orphans(root: Path, entries: Sequence[ManifestEntry]) -> Iterator[Problem]:
    """Yield a problem for each file that the manifest does not list; models may lie next to their
    vectors."""
    known = {NAME, *(entry.path for entry in entries)}
    models = {entry.model for entry in entries}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.parent == root and path.suffix == ".gguf" and hash_of(path) in models:
            continue
        if (path.is_symlink() or not path.is_dir()) and name not in known:
            text = f"{name} is an orphan: the manifest does not list it; delete it"
            yield Problem(path=name, text=text)


def whole(entries: Sequence[ManifestEntry]) -> Iterator[Problem]:
    """Yield a problem if the shipped vectors are too large; vectors of a user's model have a
    separate limit."""
    total = sum(entry.bytes for entry in entries) + bytes_held()
    if total > MAX_TOTAL:
        text = f"the vectors take {total:,} bytes, more than the {MAX_TOTAL:,} allowed; drop some"
        yield Problem(path=NAME, text=text)


def holds(
    root: Path = DEFAULT_ROOT,
    models: Sequence[Path] = (),
    progress: Callable[[str], None] = lambda _: None,
    *,
    oracle: str | None = None,
) -> Iterator[Verdict]:
    """Compare each vector with a new answer of its oracle, or of the given oracle. Ids and weights
    must be the same; products and logits must be within the recorded bound.

    `detail["bit_exact"]` says whether all bits agree. It is only information, because another CPU
    may sum in another order. Raises BrokenGolden if the folder does not verify.
    """
    return replay(root, oracle, models, progress)
