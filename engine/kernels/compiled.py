"""Compilation of functions, with a check whether the compiled code on disk is out of date."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from numba import config, njit

from lockstep.engine.errors import Unsupported

Function = TypeVar("Function", bound=Callable[..., Any])


def source_stamp(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def compile_kernel(function: Callable[..., Any], stamp: str = "", **options: Any) -> Any:
    """Return the function, compiled at its first call; the result is kept on disk for the next
    process.

    The result is kept until the function's own file changes (numba checks this) or `stamp` changes.
    `stamp` is a hash of all other sources, which numba has no public way to declare. Without a
    writable folder every process compiles anew. Raises Unsupported if numba may not compile.
    """
    if config.DISABLE_JIT:
        raise Unsupported(
            "NUMBA_DISABLE_JIT is set, and without numba's compiler there are no kernels: unset it"
        )
    try:
        kept = njit(cache=True, **options)(function)
    # "no locator available": numba can write neither beside the file nor in the user's cache
    except RuntimeError:
        return njit(**options)(function)
    index = kept._cache._cache_file
    index.save = partial(save, index)
    if stamp:
        index._source_stamp = (index._source_stamp, stamp)
    return kept


def save(index: Any, key: Any, data: Any) -> None:
    """Save the compiled code as numba does, but with the argument types in the file's name.

    numba numbers its files. If two processes compile a function for two kinds of arguments at the
    same time, both take the same number. Then one process would later load the code of the other
    process.
    """
    kept = index._load_index()
    if key not in kept:
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        kept[key] = f"{index._index_name.removesuffix('.nbi')}.{name}.nbc"
        index._save_index(kept)
    index._save_data(kept[key], data)


def is_kept(kernel: Any) -> bool:
    """Return True if numba's index on disk has compiled code of this source."""
    if kernel.stats.cache_path is None:  # nothing is cached, so each process compiles
        return False
    return bool(kernel._cache._cache_file._load_index())
