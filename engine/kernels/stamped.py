"""Kernels built from several files: the stored code is out of date once one of them changes."""

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
    """Compile a kernel that threads may run side by side; it may call kernels of these other
    files."""
    return compile_kernel(function, STAMP, nogil=True, error_model="numpy", **options)
