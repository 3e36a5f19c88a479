"""Export of one level of the vectors: documents, models, page, licence and index."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.choices import choices
from lockstep.golden.export.pages import readme
from lockstep.golden.export.sources import c_source, c_table
from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import NAME as MANIFEST
from lockstep.golden.manifest import read_manifest
from lockstep.golden.models import write_model
from lockstep.golden.store import (
    DEFAULT_ROOT,
    DTYPES,
    BrokenGolden,
    parse_json,
    read,
    sha256,
    tensor_bytes,
)
from lockstep.golden.suites.base import Vectors

WITH_RUNNERS = ("tokens", "dequant", "dot", "ops", "logits", "files")
LEVELS = (*WITH_RUNNERS, "samplers")
FORMS = ("json", "safetensors", "c")
WITH_TENSORS = ("dequant", "dot", "ops", "logits")
HERE = Path(__file__).parent
LICENCE = "MIT"


def export(
    out: Path,
    level: str,
    form: str,
    *,
    only: Sequence[str] = (),
    root: Path = DEFAULT_ROOT,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write one level of the vectors, and return the written files. only: documents such as "q4_k";
    all documents of the level if empty.

    Raises BrokenGolden for vectors that are not intact, for a form that the level does not have,
    for an unknown name, and for a folder that is not empty.
    """
    if form == "safetensors" and level not in WITH_TENSORS:
        other = " or c" if level in WITH_RUNNERS else ""
        raise BrokenGolden(f"the level {level} has no tensors: use --as json{other}")
    if form == "c" and level not in WITH_RUNNERS:
        raise BrokenGolden(f"the level {level} has no runner in C: use --as json")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BrokenGolden(f"{out} exists and is not empty: name a new folder")
    entries = {entry.path: entry for entry in read_manifest(root)}
    paths = {Path(p).stem: p for p, e in entries.items() if e.kind != "tensors" and of(p, level)}
    for name in only:
        if name not in paths:
            raise BrokenGolden(f"{level} has no {name!r} {choices(name, sorted(paths))}")
    names = sorted(set(only) or paths)
    out.mkdir(parents=True, exist_ok=True)
    written, models = [], dict[str, Mapping[str, Any]]()
    for name in names:
        progress(f"{level}/{name}")
        vectors = load_vectors(root, entries[paths[name]], entries)
        if "model" in vectors.document:
            models[vectors.document["model"]["name"]] = vectors.document["model"]
        written += [put(out / file, raw) for file, raw in files_of(level, form, name, vectors)]
    if form == "c":
        written.append(put(out / "vectors.c", c_table(level, names).encode("ascii")))
        written += [
            copy_source(f"{level}.h", out, f"{level}.h"),
            copy_source(f"{level}.c", out, "runner.c"),
        ]
    written += [path for row in models.values() for path in model_files(row, out)]
    written.append(put(out / "LICENSE", (HERE / "LICENSE").read_bytes()))
    about = about_export(root, level, form, names, models)
    written.append(put(out / "README.md", readme(about).encode("utf-8")))
    hashes = {p.relative_to(out).as_posix(): sha256(p.read_bytes()) for p in sorted(written)}
    index = json.dumps({**about, "files": hashes}, indent=1, sort_keys=True) + "\n"
    return [*written, put(out / "index.json", index.encode("ascii"))]


def of(path: str, level: str) -> bool:
    return path.startswith(f"{level}/")


def files_of(level: str, form: str, name: str, vectors: Vectors) -> Iterator[tuple[str, bytes]]:
    if form == "c":
        yield f"{name}.c", c_source(level, name, vectors).encode("ascii")
    elif form == "safetensors":
        body = {k: v for k, v in vectors.document.items() if k != "tensors"}
        yield f"{name}.json", as_json({**body, "tensors": f"{name}.safetensors"})
        yield f"{name}.safetensors", tensor_bytes(vectors.tensors)
    else:
        body = {k: v for k, v in vectors.document.items() if k != "tensors"}
        tensors = {key: inline(value) for key, value in vectors.tensors.items()}
        yield f"{name}.json", as_json({**body, "tensors": tensors} if tensors else body)


def inline(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return an array as little-endian bytes: JSON has no NaN, and some readers lose the last
    bit.
    """
    little = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
    return {
        "dtype": DTYPES[value.dtype.name],
        "shape": list(value.shape),
        "base64": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def as_json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def model_files(row: Mapping[str, Any], out: Path) -> Iterator[Path]:
    """Write the model and yield its file, if there is a recipe; users find other models by their
    hash."""
    if row["recipe"] is not None:
        path = out / "models" / f"{row['name']}.gguf"
        path.parent.mkdir(exist_ok=True)
        write_model(row, path)
        yield path


def about_export(
    root: Path,
    level: str,
    form: str,
    names: Sequence[str],
    models: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    try:
        ours = version("gguf-lockstep")
    except PackageNotFoundError:
        ours = "of a checkout"
    left_out = {n: row["sha256"] for n, row in models.items() if row["recipe"] is None}
    return {
        "format": 1,
        "level": level,
        "as": form,
        "names": list(names),
        "gguf-lockstep": ours,
        "vectors": root.name,
        "seal": parse_json(read(root / MANIFEST, 1 << 20), MANIFEST)["seal"],
        "licence": LICENCE,
        "models_not_included": left_out,
    }


def put(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def copy_source(source: str, out: Path, name: str) -> Path:
    return Path(shutil.copyfile(HERE / "c" / source, out / name))
