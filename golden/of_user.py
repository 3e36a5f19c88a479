"""Goldens of a user's models, in the user's folder."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.split_files import parts_of
from lockstep.golden.manifest import NAME, ManifestEntry, read_manifest
from lockstep.golden.models import hash_of, model_row
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.golden.suites.base import MEMORY, AskedEngine, Golden, Source, source_of
from lockstep.golden.write import Made, Progress, files_of, write
from lockstep.harness.asking.facts import ModelFacts, facts_of_model
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import EXACT

LARGEST = 5_000_000  # bytes of all vectors of one model
PIECES_OF_ALL = 4096  # size of a vocabulary up to which the texts of all tokens are stored
NOT_THERE = ("not-applicable", "not-compared")


def regenerate_user(
    root: Path,
    models: Sequence[Path],
    progress: Progress = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    *,
    nodes: Sequence[str] = (),
    oracle: str = "llama.cpp",
) -> list[Path]:
    """Write the vectors of these models; vectors of other models stay.

    nodes: names of nodes of llama.cpp's graph, whose values are stored as well. note: receives
    messages about parts that a model lacks. Returns the files whose bytes changed. Raises
    BrokenGolden, without having written anything, if the folder is not intact, a model is unusable
    or the oracle does not answer.
    """
    if root.resolve() == DEFAULT_ROOT.resolve():
        raise BrokenGolden("vectors of your model need a folder of yours: name one with --out")
    old = read_manifest(root) if (root / NAME).exists() else []
    try:
        made = [m for path in models for m in of_user(old, path, oracle, nodes, progress, note)]
    except NoAnswer as error:
        raise BrokenGolden(f"no goldens were written: {error.summary}") from error
    mine = {each.model for each in made}
    return write(root, old, made, {e.path for e in old if e.model not in mine}, progress)


def is_ours(path: Path) -> bool:
    """Return True if the shipped vectors include vectors of this file."""
    return hash_of(path) in {entry.model for entry in read_manifest(DEFAULT_ROOT)}


def of_user(
    old: Sequence[ManifestEntry],
    path: Path,
    oracle: str,
    nodes: Sequence[str],
    progress: Progress,
    note: Callable[[str], None],
) -> Iterator[Made]:
    try:
        row = model_row(name_of(old, path), path, None)
        facts = facts_of_model(path)
        n_parts = len(parts_of(path))
    except EngineError as error:
        raise BrokenGolden(f"{path}: {error}") from error
    except OSError as error:
        raise BrokenGolden(f"{path}: {error.strerror or error}") from error
    if n_parts > 1:
        raise BrokenGolden(f"{path} is split into {n_parts} files; goldens need one file")
    runner = Runner(memory_limit=MEMORY)
    with runner.open(oracle, path, EXACT) as session:
        ask = AskedEngine(engine=oracle, session=session, path=path)
        source = source_of(ask, progress, path=path, model=row)
        source = replace(source, nodes=tuple(nodes))
        made = list(kinds_of(source, facts, note))
    if not made:
        raise BrokenGolden(f"{path} has neither weights nor a vocabulary")
    size = sum(len(raw) for each in made for _, raw in files_of(each))
    if size > LARGEST:
        raise BrokenGolden(
            f"the vectors of {path} would take {size:,} bytes, at most {LARGEST:,} are written: "
            "ask for fewer nodes"
        )
    yield from made


def kinds_of(source: Source, facts: ModelFacts, note: Callable[[str], None]) -> Iterator[Made]:
    assert source.model is not None
    name = source.model["name"]
    if facts.has_vocabulary:
        yield tokens_of(source, facts, name)
    else:
        note(f"{name}: no tokens: the file has no vocabulary")
    if facts.no_run:
        note(f"{name}: no weights and no run: {facts.no_run}")
        return
    yield made_of("weights", "weights", source, name)
    try:
        yield made_of("run", "run", source, name)
    except NoAnswer as error:
        if error.status not in NOT_THERE:
            raise
        note(f"{name}: no run: {error.summary}")


def tokens_of(source: Source, facts: ModelFacts, name: str) -> Made:
    """Return the token vectors of a model. They contain every piece of a small vocabulary; of a
    large vocabulary, only the pieces in the texts."""
    small = facts.n_vocab <= PIECES_OF_ALL and not facts.no_run
    return made_of("tokens", "tokens" if small else "vocabulary", source, name)


def made_of(folder: str, kind: str, source: Source, name: str) -> Made:
    assert source.model is not None
    vectors = Golden.member(kind)().make(source, name)
    return Made(path=f"{folder}/{name}", kind=kind, vectors=vectors, model=source.model["sha256"])


def name_of(old: Sequence[ManifestEntry], path: Path) -> str:
    """Return the name that the folder uses for the file, or else a name made from the file's
    name."""
    names: dict[Any, str] = {e.model: PurePosixPath(e.path).stem for e in old}
    digest = hash_of(path)
    if digest in names:
        return names[digest]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")
    if not name:
        raise BrokenGolden(f"{path}: the name of the file has no letter to name vectors after")
    if name in names.values():
        raise BrokenGolden(f"{path}: another model has vectors named {name!r}; rename the file")
    return name
