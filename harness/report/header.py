"""The first line of a report, with everything that is needed to repeat the run."""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import machine, python_version
from typing import Any

from lockstep.engine.gguf.regular_file import open_regular
from lockstep.harness.records import EngineInfo

PACKAGES = ("gguf-lockstep", "llama-cpp-python", "gguf", "numpy", "numba")


def header(
    command: str, seed: int, models: Iterable[dict[str, Any]], engines: Iterable[EngineInfo]
) -> dict[str, Any]:
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "models": list(models),
        "engines": [asdict(engine) for engine in engines],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {"python": python_version(), "machine": machine()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def model_row(case: str, path: Path, role: str = "both", **extra: Any) -> dict[str, Any]:
    return {
        "case": case,
        "sha256": sha256_of(path),
        "bytes": path.stat().st_size,
        "role": role,
        **extra,
    }


def sha256_of(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
