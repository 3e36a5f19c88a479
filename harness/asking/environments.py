"""Other versions of an engine, each in its own Python environment, such as `llama.cpp@0.3.8`.

pip builds these environments from source distributions, in the user's cache folder. A worker runs
with its environment's interpreter and packages. Our own code comes last in the worker's path.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters import adapter_class, split_version
from lockstep.harness.adapters.llama_cpp.identity import LIBRARIES as LIBRARIES
from lockstep.harness.asking.downloads import cache_folder, hold_lock, last_words
from lockstep.harness.records import StageText

# public versions of PEP 440 as PyPI writes them, which neither pip nor a path misinterprets
VERSION = re.compile(r"(?:\d+!)?\d{1,9}(?:\.\d{1,9})*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?")
WORKER_NEEDS = ("numba>=0.60", "numpy>=1.26")  # all packages that our code needs in a worker
# GCC 12 omits the code that sets up AMX: "gcc-amx-tiles" in the known divergences
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
CPU = Path("/proc/cpuinfo")
BUILD_SECONDS = 3600.0
SAY_SECONDS = 1.0  # interval of progress messages; the terminal shows only some
LAST_LINES = 6
Progress = Callable[[str], None]
LOCK, UNFINISHED = "build.lock", ".building-"


class NotBuilt(EngineError):
    """Error: an engine's version is not built, or could not be built. Its message is one sentence
    with the reason."""


def package_of(name: str) -> tuple[str, str, str]:
    """Return (distribution, module, version) of `NAME@VERSION`. Raises Unsupported for a name that
    is not of this form."""
    engine, version = split_version(name)
    package = adapter_class(engine).package
    if package is None:
        raise Unsupported(f"{engine} has no other versions; llama.cpp has: llama.cpp@0.3.8")
    if not VERSION.fullmatch(version):
        raise Unsupported(
            f"{version[:40]!r} is not a version of {package[0]}; expected a name such as "
            f"{engine}@0.3.8"
        )
    return *package, version


def folder_of(name: str) -> Path:
    """Return the folder of the version's environment, which may not exist yet. Each Python version
    has its own folder."""
    distribution, _, version = package_of(name)
    return environments() / f"{distribution}-{version}-{sys.implementation.cache_tag}"


def environments() -> Path:
    return cache_folder() / "engines"


def python_of(name: str) -> Path:
    """Return the interpreter of this version's environment. Raises NotBuilt if the environment is
    not built; this function builds nothing."""
    folder = folder_of(name)
    if not folder.is_dir():
        raise NotBuilt(f"{name} is not built yet; build it: lockstep oracle add {name}")
    return interpreter(folder)


def interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def variables() -> dict[str, str]:
    """Return the user's environment variables, without the variable for the installed version."""
    return {name: value for name, value in os.environ.items() if name != LIBRARIES}


def has_amx() -> bool:
    """Return True if /proc/cpuinfo reports AMX. Only Linux has this file, and llama.cpp uses AMX
    only on Linux."""
    return CPU.is_file() and "amx_tile" in CPU.read_text().split()


def for_builds() -> dict[str, str]:
    """Return `variables`, with flags that disable AMX if this processor has AMX. In this case pip's
    cache is off too, because the cache does not record the flags."""
    if not has_amx():
        return variables()
    flags = {
        name: f"{os.environ.get(name, '')} {WITHOUT_AMX}".strip() for name in ("CFLAGS", "CXXFLAGS")
    }
    return variables() | flags | {"PIP_NO_CACHE_DIR": "1"}


def provide(name: str, progress: Progress = lambda _: None) -> Path | None:
    """Build the environment of `NAME@VERSION` if it does not exist, and return its folder. Return
    None for a name without a version, which needs no environment.

    Raises NotBuilt if the build fails, and then leaves no files.
    """
    if not split_version(name)[1]:
        return None
    folder = folder_of(name)
    if folder.is_dir():  # before the lock, which the build of another version may hold for minutes
        return folder
    return built_once(folder, lambda new: build(name, new, progress))


def built_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Build a folder once, and return it. `make` builds under a temporary name, and the folder is
    then renamed. So a folder with the final name is complete. Raises NotBuilt if the build fails,
    and then leaves no files."""
    try:
        with hold_lock(environments() / LOCK):
            for old in environments().glob(f"{UNFINISHED}*"):  # left by a process that was killed
                shutil.rmtree(old, ignore_errors=True)
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=UNFINISHED) as work:
                    new = Path(work) / "environment"
                    make(new)
                    new.rename(folder)
    except OSError as error:
        raise NotBuilt(f"{error.filename or folder}: {error.strerror or error}") from error
    return folder


def take_away(folder: Path) -> None:
    with hold_lock(environments() / LOCK):
        gone = Path(tempfile.mkdtemp(dir=folder.parent, prefix=UNFINISHED))
        folder.rename(gone / "environment")
        shutil.rmtree(gone)


def build(name: str, new: Path, progress: Progress) -> None:
    distribution, module, version = package_of(name)
    progress(StageText(f"building {distribution} {version} from source (only once; takes minutes)"))
    run_command(
        [sys.executable, "-m", "venv", "--without-pip", str(new)],
        f"no environment {name}",
        lambda seconds: progress(f"making an environment{after(seconds)}"),
    )
    run_command(
        [
            *(sys.executable, "-m", "pip", "--python", str(interpreter(new)), "install"),
            *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
            *("--retries", "1", "--no-binary", distribution),
            *(f"{distribution}=={version}", *WORKER_NEEDS),
        ],
        f"pip could not install {distribution} {version}",
        lambda seconds: progress(
            StageText(f"building {distribution} {version} by pip{after(seconds)}")
        ),
    )
    found = run_command(
        [
            *(str(interpreter(new)), "-I", "-c"),
            f"import {module}, importlib.metadata as m; print(m.version({distribution!r}))",
        ],
        f"{distribution} {version} was built and does not load",
        lambda seconds: progress(f"loading {distribution} {version}{after(seconds)}"),
    )
    if found.strip() != version:
        raise NotBuilt(f"pip installed {distribution} {found.strip()[:40]}, not {version}")


def remove(name: str) -> Path:
    """Remove an environment, and return its former folder. Raises NotBuilt if there is none."""
    folder = python_of(name).parents[1]
    take_away(folder)
    return folder


def built_versions(engine: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of each built version that this Python can run."""
    package = adapter_class(engine).package
    if package is None or not environments().is_dir():
        return
    tag = sys.implementation.cache_tag
    for folder in sorted(environments().glob(f"{package[0]}-*-{tag}")):
        version = folder.name.removeprefix(f"{package[0]}-").removesuffix(f"-{tag}")
        yield f"{engine}@{version}", folder


def after(seconds: float) -> str:
    return f", {seconds:.0f} s so far"


def run_command(command: list[str], problem: str, waiting: Callable[[float], None]) -> str:
    """Run a command, and return its output. Raises NotBuilt with the problem and the command's last
    lines. `waiting` is called at intervals with the number of seconds so far."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=for_builds(),
        # a group of its own, so that all its processes can be ended together
        start_new_session=True,
    )
    try:
        out, err = words_of(process, problem, waiting)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # closes the pipes
    if process.returncode:
        raise NotBuilt(f"{problem}: {last_words(err or out, LAST_LINES)}")
    return out


def words_of(
    process: "subprocess.Popen[str]", problem: str, waiting: Callable[[float], None]
) -> tuple[str, str]:
    started = time.monotonic()
    while (taken := time.monotonic() - started) < BUILD_SECONDS:
        waiting(taken)
        with suppress(subprocess.TimeoutExpired):  # the output so far is kept
            return process.communicate(timeout=SAY_SECONDS)
    raise NotBuilt(f"{problem}: not done within {BUILD_SECONDS:.0f} s")
