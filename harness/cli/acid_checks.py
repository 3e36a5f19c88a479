"""`lockstep check --suite acid`: the files to check, and the engines that can open them."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.harness.cli.acid_models import ACID, acid_files
from lockstep.harness.cli.shared import models_of, usage
from lockstep.harness.cli.variants import variant_files


def files_to_check(
    model: Path | None, arch: str | None, suites: list[str] | None, folder: str, seed: int
) -> Sequence[tuple[str, Path, list[str] | None, bool]]:
    """Return a tuple for each file: its name in the report, its path, its suites, and True if an
    engine may refuse the model. The acid suite gets acid models. Without MODEL the other suites get
    the built-in models."""
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
    """Refuse an engine that cannot open several acid models one after the other. Raises
    BadInput."""
    from lockstep.harness.dumps.dump import folder_of
    from lockstep.harness.http.session import is_address

    if subject_model is not None:
        raise usage("--suite acid makes the models for both engines: omit --subject-model")
    if is_address(engine) or folder_of(engine) is not None:
        raise usage(
            f"{engine} serves one model and cannot open others. Use serve:COMMAND to start a "
            "server for each model, or write an acid model (lockstep acid write -o acid.gguf), "
            "serve it, and check acid.gguf"
        )
