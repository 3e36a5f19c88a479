"""The only code that writes the goldens."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.ggml.base import has_meaning
from lockstep.golden.acid_models import regenerate_acid
from lockstep.golden.fetch import PREFIX
from lockstep.golden.manifest import NAME, ManifestEntry, read_manifest
from lockstep.golden.models import model_row
from lockstep.golden.ops.vectors import operations
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.golden.suites import files, samplers
from lockstep.golden.suites.base import SEED, AskedEngine, Golden, Source, source_of
from lockstep.golden.suites.dequant import types
from lockstep.golden.suites.dot import types_with_products
from lockstep.golden.write import Made, Progress, write
from lockstep.harness.asking.facts import facts_of_model
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import EXACT
from lockstep.harness.report.header import sha256_of
from lockstep.harness.synth.builtin import BUILTIN, BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama

TOKENS_OF = ("f32",)  # one built-in model suffices, because they share a vocabulary
BUILTIN_NAMES = ("f32", "f16", "bf16", "q8_0", "q4_0", "moe", "moe-q8_0")
SAMPLER_WORDS = "llama"  # kind of the vocabulary for dry and infill
SYNTH = "synth-"  # prefix of the names of built-in vocabularies


def regenerate(
    root: Path = DEFAULT_ROOT,
    models: Sequence[Path] = (),
    progress: Progress = lambda _: None,
    *,
    oracle: str = "llama.cpp",
) -> list[Path]:
    """Write vectors from the oracle's answers; return the files whose bytes changed.

    Without `models`, the vectors that need no model file are written, and other vectors stay. With
    `models`, the vectors of these models are written, and other vectors stay. Vectors whose last
    bits depend on the oracle's CPU also stay, if the oracle's new answer is within their bound.
    Raises BrokenGolden, without having written anything, if the manifest is not intact, a model is
    unusable or the oracle does not answer.
    """
    old = read_manifest(root) if (root / NAME).exists() else []
    try:
        if models:
            made = [each for path in models for each in of_file(old, path, oracle, progress)]
        else:
            made = list(of_builtin(oracle, progress))
    except NoAnswer as error:
        raise BrokenGolden(f"no goldens were written: {error.summary}") from error
    kept = {e.path for e in old if models or e.model is not None}
    changed = write(root, old, made, kept, progress)
    if root == DEFAULT_ROOT and not models:
        progress("acid models")
        changed += regenerate_acid()
    return changed


def of_builtin(oracle: str, progress: Progress) -> Iterator[Made]:
    runner = Runner()
    wanted = [("dequant", kind, own or oracle) for kind, own in types().items()]
    wanted += [("dot", kind, oracle) for kind in types_with_products()]
    wanted += [("ops", op, oracle if has_meaning(op) else "reference") for op in operations()]
    with ExitStack() as stack:
        sources: dict[str, Source] = {}
        for golden, kind, engine in wanted:
            if engine not in sources:
                session = stack.enter_context(runner.open(engine, None, EXACT))
                sources[engine] = source_of(AskedEngine(engine=engine, session=session), progress)
            vectors = Golden.member(golden)().make(sources[engine], kind)
            where = f"{golden}/{kind.lower()}"
            yield Made(path=where, kind=golden, vectors=vectors, model=None)
        progress("files: asking the parsers")
        for name, vectors in files.every(sources[oracle], files.names()).items():
            yield Made(path=f"files/{name}", kind="files", vectors=vectors, model=None)
    with tempfile.TemporaryDirectory(prefix="lockstep-golden-") as folder:
        for name in BUILTIN_NAMES:
            path = Path(folder) / f"{name}.gguf"
            write_llama(BUILTIN[name], path)
            row = model_row(name, path, BUILTIN[name])
            yield from of_model(path, row, oracle, progress, tokens=name in TOKENS_OF)
        yield from of_samplers(Path(folder), oracle, progress)
        for kind, recipe in BUILTIN_VOCABULARIES.items():
            if kind != "none":
                path = Path(folder) / f"{SYNTH}{kind}.gguf"
                write_llama(recipe, path)
                row = model_row(path.stem, path, recipe)
                yield of_vocabulary(path, row, oracle, progress)


def of_samplers(folder: Path, oracle: str, progress: Progress) -> Iterator[Made]:
    recipe = BUILTIN_VOCABULARIES[SAMPLER_WORDS]
    path = folder / "samplers.gguf"
    write_llama(recipe, path)
    with Runner().open(oracle, path, EXACT) as session:
        ask = AskedEngine(engine=oracle, session=session)
        row = model_row(f"{SYNTH}{SAMPLER_WORDS}", path, recipe)
        source = source_of(ask, progress, path=path, model=row)
        for name in samplers.DOCUMENTS:
            vectors = Golden.member("samplers")().make(source, name)
            yield Made(path=f"samplers/{name}", kind="samplers", vectors=vectors, model=None)


def of_file(
    old: Sequence[ManifestEntry], path: Path, oracle: str, progress: Progress
) -> Iterator[Made]:
    try:
        with GgufFile.open(path) as file:
            weights = bool(file.tensors)
        tokens = facts_of_model(path).has_vocabulary
        row = model_row(name_of(old, path), path, None)
    except EngineError as error:
        raise BrokenGolden(f"{path}: {error}") from error
    except OSError as error:
        raise BrokenGolden(f"{path}: {error.strerror or error}") from error
    if weights:
        yield from of_model(path, row, oracle, progress, tokens=tokens)
    elif tokens:
        yield of_vocabulary(path, row, oracle, progress)
    else:
        raise BrokenGolden(f"{path} has neither weights nor a vocabulary")


def name_of(old: Sequence[ManifestEntry], path: Path) -> str:
    """Return the name of the model's existing vectors, or else a name made from the file's name."""
    digest = sha256_of(path)
    known = ("logits", "vocabulary")
    names = {e.model: PurePosixPath(e.path).stem for e in old if e.kind in known}
    if digest in names:
        return names[digest]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem.removeprefix(PREFIX)).lstrip("._-")
    if not name:
        raise BrokenGolden(f"{path}: the name of the file has no letter to name vectors after")
    if name in BUILTIN_NAMES or name.startswith(SYNTH):
        raise BrokenGolden(
            f"{path}: {name!r} is a built-in model; refresh it by a run without a model, or rename "
            "the file"
        )
    if name in names.values():
        raise BrokenGolden(f"{path}: another model has vectors named {name!r}; rename the file")
    return name


def of_model(
    path: Path, row: dict[str, Any], oracle: str, progress: Progress, *, tokens: bool
) -> Iterator[Made]:
    with Runner().open(oracle, path, EXACT) as session:
        seed = SEED if row["recipe"] is None else row["recipe"]["seed"]
        ask = AskedEngine(engine=oracle, session=session)
        source = source_of(ask, progress, path=path, model=row, seed=seed)
        key = row["sha256"] if row["recipe"] is None else None
        for kind in ("tokens", "logits") if tokens else ("logits",):
            vectors = Golden.member(kind)().make(source, row["name"])
            yield Made(path=f"{kind}/{row['name']}", kind=kind, vectors=vectors, model=key)


def of_vocabulary(path: Path, row: dict[str, Any], oracle: str, progress: Progress) -> Made:
    with Runner().open(oracle, path, EXACT) as session:
        ask = AskedEngine(engine=oracle, session=session, path=path)
        source = source_of(ask, progress, path=path, model=row)
        vectors = Golden.member("vocabulary")().make(source, row["name"])
    key = row["sha256"] if row["recipe"] is None else None
    return Made(path=f"tokens/{row['name']}", kind="vocabulary", vectors=vectors, model=key)
