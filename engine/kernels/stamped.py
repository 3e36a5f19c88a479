"""Kernels made of parts of many files: what is kept of them is out of date once one changes."""

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
    """Threads may run it side by side; a kernel may call those of the other files here."""
    return compile_kernel(function, STAMP, nogil=True, error_model="numpy", **options)
