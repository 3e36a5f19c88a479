"""Kernels built from several files. Compiled code on disk is out of date once one file changes."""

import hashlib
from pathlib import Path
from typing import Any

from lockstep.engine.kernels.compiled import compile_kernel

ENGINE = Path(__file__).parents[1]
FOLDERS = ENGINE / "ops" / "fast", ENGINE / "kernels", ENGINE / "quants"
BOOKS = (ENGINE / "quants" / "codebooks").glob("*.hex")
SOURCES = (*(path for folder in FOLDERS for path in folder.glob("*.py")), *BOOKS)
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES))).hexdigest()


def kernel(function: Any, **options: Any) -> Any:
    """Compile a kernel that several threads may run at once, and that may call kernels from the
    files listed here."""
    return compile_kernel(function, STAMP, nogil=True, error_model="numpy", **options)
