"""Holds any engine against the goldens; no oracle is needed."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from engine.registry import import_members
from golden.load import documents, load_vectors
from golden.manifest import Entry, read_manifest
from golden.models import Shelf
from golden.store import DEFAULT_ROOT, BrokenGolden
from golden.suites.base import Asked, Golden, Vectors, Verdicts
from harness.records import Settings, Verdict
from harness.runner import Runner, Session
from harness.suites.base import NoAnswer

Progress = Callable[[str], None]


def replay(
    root: Path = DEFAULT_ROOT,
    engine: str | None = "reference",
    models: Sequence[Path] = (),
    progress: Progress = lambda _: None,
    *,
    only: Sequence[str] = (),
    runner: Runner | None = None,
) -> Iterator[Verdict]:
    """The verdicts of each golden in turn; one whose model is not there is not compared.

    engine: None asks each vector's own oracle. models: files for the vectors that no recipe makes,
    in any order; their hashes tell. only: paths without suffix, such as "logits/f32"; all if
    empty. Raises BrokenGolden if a vector is not what the generator wrote, Unsupported for an
    engine that does not exist.
    """
    entries = read_manifest(root)
    by_path = {entry.path: entry for entry in entries}
    chosen = [e for e in documents(entries) if not only or stem(e) in only]
    unknown = sorted(set(only) - {stem(e) for e in chosen})
    if unknown:
        known = ", ".join(stem(e) for e in documents(entries))
        raise BrokenGolden(f"there is no golden {unknown[0]!r} (known: {known})")
    import_members("golden.suites")
    runner = runner or Runner()
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-golden-") as folder,
        Opener(runner) as opener,
    ):
        shelf = Shelf(models, Path(folder))
        for entry in chosen:
            progress(stem(entry))
            vectors = load_vectors(root, entry, by_path)
            asked = engine or str(vectors.document["provenance"]["oracle"]["engine"])
            verdict = Verdicts(
                suite=f"golden-{entry.kind}",
                case=Path(entry.path).stem,
                repro=f"lockstep golden verify --engine {asked} --only {stem(entry)}",
            )
            yield from one(vectors, entry.kind, asked, shelf, opener, verdict)


class Opener:
    """Sessions, one of each engine, kept until it is asked for another: neighbours in the list
    share theirs, and an engine that answers in between ends none."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.open: dict[str, tuple[object, Session]] = {}

    def __call__(self, engine: str, path: Path | None, settings: Settings) -> Session:
        what, session = self.open.get(engine, (None, None))
        if session is None or what != (path, settings):
            if session is not None:
                session.close()
                del self.open[engine]
            session = self.runner.open(engine, path, settings)
            self.open[engine] = ((path, settings), session)
        return session

    def close(self) -> None:
        for _, session in self.open.values():
            session.close()
        self.open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stem(entry: Entry) -> str:
    return entry.path.removesuffix(".json")


def one(
    vectors: Vectors,
    kind: str,
    engine: str,
    shelf: Shelf,
    open_session: "Opener",
    verdict: Verdicts,
) -> Iterator[Verdict]:
    row = vectors.document.get("model")
    path = None if row is None else shelf.find(row)
    if row is not None and path is None:
        yield verdict(
            "not-compared",
            f"the model {row['name']} was not given: it is the file with sha256 {row['sha256']}",
        )
        return
    settings = Settings(**vectors.document["provenance"]["settings"])
    ask = Asked(engine=engine, session=open_session(engine, path, settings), path=path)
    try:
        yield from Golden.named(kind)().replay(vectors, ask, verdict)
    except NoAnswer as error:
        key = error.status if error.status != "not-compared" else ""
        yield verdict(error.status, error.summary, error.detail, key)
