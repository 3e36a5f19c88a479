"""How decoders are compiled, and what makes their kept results out of date."""

import hashlib
from pathlib import Path
from typing import cast

from lockstep.engine.kernels.compiled import Function, compiled

HERE = Path(__file__).parent
SHARED = ("unpacking.py", "vectors.py", "lanes.py")
CODE_BOOKS = HERE.parent / "quants" / "codebooks"


def shared_sources() -> str:
    """A hash of what kernels draw in from other files than their own."""
    books = sorted(path for path in CODE_BOOKS.iterdir() if path.is_file())
    found = hashlib.sha256()
    for path in (*(HERE / name for name in SHARED), *books):
        found.update(path.read_bytes())
    return found.hexdigest()


SHARED_SOURCES = shared_sources()


def kernel(function: Function) -> Function:
    """Compile at the first call; the result is kept on disk, and threads may run it side by side.

    Besides its own file a kernel may use lanes and code books, but nothing of another format: the
    kept result is dropped when one of these changes.
    """
    options = {"nogil": True, "error_model": "numpy"}
    return cast(Function, compiled(function, SHARED_SOURCES, **options))
