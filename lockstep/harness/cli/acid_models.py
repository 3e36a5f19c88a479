"""`acid:ARCH:TYPE` in the place of a MODEL: acid models, written when they are asked for."""

from collections.abc import Iterator, Sequence
from pathlib import Path

ACID, ACID_PREFIX = "acid", "acid:"


def acid_model(name: str, folder: Path) -> Path:
    """name: acid:ARCH:TYPE, or acid:TYPE of a llama."""
    from lockstep.harness.acid.write import write_acid

    *arch, quant = name.removeprefix(ACID_PREFIX).split(":")
    path = folder / f"{name.replace(':', '-')}.gguf"
    write_acid(path, ":".join(arch) or "llama", quant)
    return path


def acid_files(arch: str | None, folder: Path) -> Iterator[tuple[str, Path]]:
    """One of each type of a llama, and in F32 of each other architecture; F32 first."""
    from lockstep.harness.acid.every import FIRST, every
    from lockstep.harness.acid.write import check_known

    arch = None if arch == "all" else arch
    if arch is not None:
        check_known(arch, FIRST)
    for each, quant in every(arch):
        name = f"{ACID_PREFIX}{each}:{quant}"
        yield name, acid_model(name, folder)


def files_to_check(
    model: Path | None, arch: str | None, suites: list[str] | None, folder: str, seed: int
) -> Sequence[tuple[str, Path, list[str] | None, bool]]:
    """Names for the report, files, their suites, and whether an engine need not take the model.

    Acid models are their own: who asks for that suite and gives no MODEL is given them, and for
    the other suites what these have without.
    """
    from lockstep.harness.cli.shared import models_of
    from lockstep.harness.cli.variants import variant_files

    others = [each for each in suites or () if each != ACID]
    makes = model is None and ACID in (suites or ())
    made = list(acid_files(arch, Path(folder))) if makes else []
    found: list[tuple[str, Path, list[str] | None, bool]] = [
        (*file, [ACID], place > 0) for place, file in enumerate(made)
    ]
    if made and not others:
        return found
    files = models_of(model, folder) if arch is None else variant_files(arch, folder, seed)
    return found + [(*file, others if made else suites, False) for file in files]


def check_opens_files(engine: str, subject_model: Path | None) -> None:
    """Raises BadInput where an engine cannot be given one acid model after the other."""
    from lockstep.harness.cli.shared import usage
    from lockstep.harness.dumps.dump import folder_of
    from lockstep.harness.http.session import is_address

    if subject_model is not None:
        raise usage("--suite acid makes the models of both engines: give no --subject-model")
    if is_address(engine) or folder_of(engine) is not None:
        raise usage(
            f"{engine} holds one model and opens no other: write an acid model (lockstep acid "
            "write -o acid.gguf), let it hold that, and check acid.gguf"
        )
