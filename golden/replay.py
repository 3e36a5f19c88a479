"""Comparison of any engine with the goldens; no oracle is needed."""

import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from lockstep.engine.choices import choices
from lockstep.engine.registry import import_members
from lockstep.golden.load import documents, load_vectors
from lockstep.golden.manifest import ManifestEntry, read_manifest
from lockstep.golden.models import Shelf
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.golden.suites.base import MEMORY, AskedEngine, Golden, Vectors, Verdicts, each
from lockstep.harness.asking.facts import facts_of_model
from lockstep.harness.check.check import stand_in
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import Settings, Verdict

Progress = Callable[[str], None]


def replay(
    root: Path = DEFAULT_ROOT,
    engine: str | None = "reference",
    models: Sequence[Path] = (),
    progress: Progress = lambda _: None,
    *,
    only: Sequence[str] = (),
    subject_model: Path | None = None,
    runner: Runner | None = None,
) -> Iterator[Verdict]:
    """Yield the verdicts of each golden, one after the other; a golden without its model is not
    compared.

    engine: None runs each vector's own oracle. models: files of models without a recipe, in any
    order; they are recognised by their hashes. Files in the folder are found without being given.
    only: paths without suffix, such as "logits/f32"; all if empty. subject_model: a file that the
    engine runs instead of the model, whatever its hash. Raises BrokenGolden if a vector has changed
    since its generation, and Unsupported for an unknown engine.
    """
    entries = read_manifest(root)
    by_path = {entry.path: entry for entry in entries}
    chosen = select_entries(entries, only)
    if subject_model is not None and len({e.model for e in chosen}) != 1:
        raise BrokenGolden(
            "a model's replacement needs vectors of one model: choose them with `only`"
        )
    import_members("lockstep.golden.suites")
    runner = runner or Runner(memory_limit=MEMORY)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-golden-") as folder,
        Opener(runner) as opener,
    ):
        shelf = Shelf([*models, *sorted(root.glob("*.gguf"))], Path(folder), subject_model)
        for entry in chosen:
            progress(stem(entry))
            vectors = load_vectors(root, entry, by_path)
            asked = engine or str(vectors.document["provenance"]["oracle"]["engine"])
            verdict = Verdicts(
                suite=f"golden-{entry.kind}",
                case=Path(entry.path).stem,
                repro=repro(root, asked, models, subject_model, stem(entry)),
            )
            yield from one(vectors, entry.kind, asked, shelf, opener, verdict)


def select_entries(entries: Sequence[ManifestEntry], only: Sequence[str]) -> list[ManifestEntry]:
    every = {stem(entry): entry for entry in documents(list(entries))}
    for name in only:
        if name not in every:
            raise BrokenGolden(f"there is no golden {name!r} {choices(name, every)}")
    return [entry for name, entry in every.items() if not only or name in only]


def repro(
    root: Path, engine: str, models: Sequence[Path], subject_model: Path | None, name: str
) -> str:
    words = ["lockstep", "golden", "verify"]
    words += [] if root == DEFAULT_ROOT else [str(root)]
    words += ["--engine", engine, "--only", name]
    words += [word for path in models for word in ("--model", str(path))]
    words += [] if subject_model is None else ["--subject-model", str(subject_model)]
    return shlex.join(words)


class Opener:
    """Opens one session per engine, and keeps it until that engine needs another model or settings.

    So neighbouring goldens share a session, even if another engine is used between them.
    """

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


def stem(entry: ManifestEntry) -> str:
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
            f"the model {row['name']} was not given: pass --model with the file whose sha256 is "
            f"{row['sha256']}",
        )
        return
    if path is not None:
        engine = stand_in(engine, facts_of_model(path))
    verdict = replace(verdict, engine=engine)
    settings = Settings(**vectors.document["provenance"]["settings"])
    ask = AskedEngine(engine=engine, session=open_session(engine, path, settings), path=path)
    yield from each(verdict, lambda: Golden.member(kind)().replay(vectors, ask, verdict))
