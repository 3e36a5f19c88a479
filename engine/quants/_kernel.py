"""How decoders are compiled, and when what is kept of that on disk is out of date."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

HERE = Path(__file__).parent
SHARED = ("_kernel.py", "_vectors.py", "lanes.py")


def shared_sources() -> str:
    """A hash of what kernels draw in from other files than their own."""
    books = sorted(path for path in (HERE / "codebooks").iterdir() if path.is_file())
    found = hashlib.sha256()
    for path in (*(HERE / name for name in SHARED), *books):
        found.update(path.read_bytes())
    return found.hexdigest()


SHARED_SOURCES = shared_sources()


def kernel(function: Function) -> Function:
    """Compile at the first call; the result is kept on disk, and threads may run it side by side.

    Besides its own file a kernel may use lanes and code books, but nothing of another format: the
    kept result is dropped when one of these changes. (numba by itself looks at the function's own
    file only, and has no public way to say what else to look at.)
    """
    compiled = njit(cache=True, nogil=True, error_model="numpy")(function)
    index = compiled._cache._cache_file
    index._source_stamp = (index._source_stamp, SHARED_SOURCES)
    return cast(Function, compiled)
