"""Description of the changes between two folders of goldens, or two files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.choices import choices
from lockstep.engine.registry import import_members
from lockstep.golden.manifest import NAME
from lockstep.golden.schemas import violations
from lockstep.golden.store import (
    MAX_JSON,
    MAX_TENSORS,
    BrokenGolden,
    Tensors,
    parse_json,
    parse_tensors,
    read,
)
from lockstep.golden.suites.base import Golden, Vectors

DOCUMENT, TENSORS = ".json", ".safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenDifference:
    path: str  # relative to the folder
    case: str  # empty for a whole file
    kind: Literal["added", "removed", "changed"]
    text: str  # description of the change

    def __str__(self) -> str:
        where = f"{self.path}: {self.case}" if self.case else self.path
        return f"{where}: {self.text}"


def diff(a: Path, b: Path) -> list[GoldenDifference]:
    """Compare `a` with `b`, either two folders or two files. Hashes are not checked; `verify`
    checks them. Raises BrokenGolden for a file that cannot be read as vectors."""
    for path in (a, b):
        if not path.exists():
            raise BrokenGolden(f"{path}: no such file or folder")
    if a.is_dir() != b.is_dir():
        raise BrokenGolden(f"{a} and {b} are a file and a folder: give two files or two folders")
    if not a.is_dir():
        return list(between(b.name, cases_of(a), cases_of(b)))
    ours, theirs = list_documents(a), list_documents(b)
    found: list[GoldenDifference] = []
    for name in sorted({*ours, *theirs}):
        if name not in theirs:
            found.append(GoldenDifference(path=name, case="", kind="removed", text="removed"))
        elif name not in ours:
            found.append(GoldenDifference(path=name, case="", kind="added", text="added"))
        else:
            found += between(name, cases_of(ours[name]), cases_of(theirs[name]))
    return found


def list_documents(root: Path) -> dict[str, Path]:
    """Return the documents, and tensor files without a document; other tensor files are read with
    their document."""
    found = {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*")
        if not path.is_dir() and path.suffix in (DOCUMENT, TENSORS)
    }
    found.pop(NAME, None)
    return {
        name: path
        for name, path in found.items()
        if path.suffix == DOCUMENT or not path.with_suffix(DOCUMENT).exists()
    }


def cases_of(path: Path) -> Mapping[str, Any]:
    if path.suffix == TENSORS:
        return parse_tensors(read(path, MAX_TENSORS), path.name)
    if path.suffix != DOCUMENT:
        raise BrokenGolden(f"{path}: vectors are {DOCUMENT} or {TENSORS} files")
    document = parse_json(read(path, MAX_JSON), path.name)
    kind = document.get("kind") if isinstance(document, dict) else None
    import_members("lockstep.golden.suites")
    if kind not in Golden.family:
        known = choices(str(kind), sorted(Golden.family))
        raise BrokenGolden(f"{path}: there are no goldens of kind {kind!r} {known}")
    wrong = next(violations(kind, document), None)
    if wrong is not None:
        raise BrokenGolden(f"{path} breaks its schema at {wrong}")
    tensors: Tensors = {}
    if "tensors" in document:
        payload = path.with_suffix(TENSORS)
        tensors = parse_tensors(read(payload, MAX_TENSORS), payload.name)
    golden, vectors = Golden.member(kind)(), Vectors(document=document, tensors=tensors)
    try:
        return golden.cases(vectors)
    except (KeyError, ValueError) as error:
        raise BrokenGolden(f"{path}: document and tensors do not match: {error}") from error


def between(path: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[GoldenDifference]:
    for case in {**a, **b}:
        if case not in b:
            yield GoldenDifference(path=path, case=case, kind="removed", text="removed")
        elif case not in a:
            yield GoldenDifference(path=path, case=case, kind="added", text="added")
        else:
            text = change(a[case], b[case])
            if text:
                yield GoldenDifference(path=path, case=case, kind="changed", text=text)


def change(a: Any, b: Any) -> str:
    """Describe how b differs from a; "" if they are equal bit for bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return change_of_arrays(a, b)
    if a == b:
        return ""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        return "; ".join(f"{key}: {change(a.get(key), b.get(key))}" for key in keys)
    if isinstance(a, list) and isinstance(b, list):
        return change_of_lists(a, b)
    return f"{short(a)} became {short(b)}"


def change_of_lists(a: list[Any], b: list[Any]) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    parts = [] if len(a) == len(b) else [f"{len(a)} elements became {len(b)}"]
    if at is not None:
        parts.append(f"the first change is at {at}: {short(a[at])} became {short(b[at])}")
    return ", ".join(parts)


def change_of_arrays(a: NDArray[Any], b: NDArray[Any]) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype} of shape {a.shape} became {b.dtype} of shape {b.shape}"
    x, y = (np.ascontiguousarray(v).view(f"u{a.dtype.itemsize}") for v in (a, b))
    changed = x != y
    if not changed.any():
        return ""
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(b.astype(np.float64) - a.astype(np.float64))
    # a NaN that appears or disappears is the largest change; a NaN that stays is none
    size = np.where(np.isnan(size), np.where(np.isnan(a) & np.isnan(b), 0.0, np.inf), size)
    worst = np.unravel_index(int(np.where(changed, size, -1.0).argmax()), a.shape)
    at = [int(i) for i in worst]
    old, new = float(a[worst]), float(b[worst])
    by = f"by {size[worst]:.3g}" if size[worst] > 0 else "in its bits only"
    return (
        f"{int(changed.sum())} of {a.size} values changed, the worst at {at} {by}: "
        f"{old:.9g} became {new:.9g}"
    )


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
