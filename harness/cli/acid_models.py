"""Acid models in place of a MODEL: `acid:ARCH:TYPE`, written on demand."""

from collections.abc import Iterator
from pathlib import Path

ACID, ACID_PREFIX = "acid", "acid:"


def acid_model(name: str, folder: Path) -> Path:
    """Write an acid model, and return its path. name: acid:ARCH:TYPE, or acid:TYPE for llama."""
    from lockstep.harness.acid.write import write_acid

    *arch, quant = name.removeprefix(ACID_PREFIX).split(":")
    path = folder / f"{name.replace(':', '-')}.gguf"
    write_acid(path, ":".join(arch) or "llama", quant)
    return path


def acid_files(arch: str | None, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of acid models: all types for llama, F32 for other
    architectures."""
    from lockstep.harness.acid.every import FIRST, every
    from lockstep.harness.acid.write import check_known

    arch = None if arch == "all" else arch
    if arch is not None:
        check_known(arch, FIRST)
    for each, quant in every(arch):
        name = f"{ACID_PREFIX}{each}:{quant}"
        yield name, acid_model(name, folder)
