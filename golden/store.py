"""Safe file access: bounded reads, paths that stay inside a folder, one canonical form of JSON."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from lockstep.engine.gguf.regular_file import read_regular

DEFAULT_ROOT = Path(__file__).parent / "vectors" / "v1"
MAX_JSON = 4 << 20  # number of bytes
MAX_TENSORS = 8 << 20
MAX_TOTAL = 20 << 20  # bytes of all vectors together

Tensors = dict[str, NDArray[Any]]
DTYPES = {  # names of safetensors
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
}


class BrokenGolden(Exception):
    """Error: vectors are damaged or cannot be made; the message is one sentence."""


def inside(root: Path, name: str) -> Path:
    """Return the path of the named file in `root`; raises BrokenGolden if the name leads
    outside."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or set(name) & {"\\", "\0"} or str(pure) != name:
        raise BrokenGolden(f"{name!r} is not a plain path inside the folder")
    path = root / pure
    if path.resolve() != root.resolve() / pure:
        raise BrokenGolden(f"{name!r} leads out of the folder through a link")
    return path


def read(path: Path, limit: int) -> bytes:
    """Return the whole file; raises BrokenGolden if the file is missing or longer than `limit`
    bytes."""
    try:
        return read_regular(path, limit)
    except OSError as error:
        raise BrokenGolden(f"{path.name} cannot be read: {error.strerror}") from error


def parse_json(raw: bytes, name: str) -> Any:
    """Parse strict JSON without duplicate keys. Raises BrokenGolden for anything else."""
    try:
        return json.loads(raw, object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise BrokenGolden(f"{name} is not JSON: {error}") from error


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key appears twice among {[key for key, _ in pairs][:8]}")
    return found


def no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def parse_tensors(raw: bytes, name: str) -> Tensors:
    try:
        return dict(load(raw))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BrokenGolden(f"{name} is not a safetensors file: {error}") from error


def shapes_of(tensors: Tensors) -> dict[str, dict[str, Any]]:
    """Return the dtypes and shapes of a document's tensors, to be written in the document."""
    return {
        key: {"dtype": DTYPES.get(str(value.dtype), str(value.dtype)), "shape": list(value.shape)}
        for key, value in tensors.items()
    }


def tensor_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    return save({key: np.ascontiguousarray(value) for key, value in tensors.items()})


ENCODE = json.JSONEncoder(allow_nan=False).encode


def canonical(value: Any) -> bytes:
    """Return a document's only allowed text: sorted keys, and lists of plain values on one line."""
    return (render_json(value, "") + "\n").encode("ascii")


def render_json(value: Any, margin: str) -> str:
    deeper = margin + " "
    if isinstance(value, dict) and value:
        rows = [f"{ENCODE(k)}: {render_json(value[k], deeper)}" for k in sorted(value)]
    elif isinstance(value, list) and any(issubclass(t, dict | list) for t in {*map(type, value)}):
        rows = [render_json(item, deeper) for item in value]
    else:
        return ENCODE(value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inner = ",\n".join(deeper + row for row in rows)
    return f"{opening}\n{inner}\n{margin}{closing}"


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def replace_file(path: Path, raw: bytes) -> bool:
    """Write a file through a temporary file and a rename. Return False if the file already has
    these bytes."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == raw:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        Path(name).chmod(0o644)  # mkstemp creates private files
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True
