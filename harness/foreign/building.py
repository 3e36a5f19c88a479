"""Builds the environment of an engine from public packages, and returns the command that starts its
program."""

import hashlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from lockstep.engine.errors import Unsupported
from lockstep.harness.asking.environments import (
    NotBuilt,
    Progress,
    after,
    built_once,
    environments,
    interpreter,
    run_command,
    take_away,
)
from lockstep.harness.foreign.engines import (
    ENGINES,
    PROGRAMS,
    Foreign,
    engine_named,
    split_name,
)
from lockstep.harness.records import StageText

ENTRY = "entry.mjs"  # file in a node environment that imports the engine from its folder


def folder_of(engine: Foreign) -> Path:
    """Return the folder of the engine's environment, which may not exist yet. Each version and each
    list of packages has its own folder, because an older Lockstep may have installed other
    packages."""
    tag = sys.implementation.cache_tag if engine.kind == "python" else "node"
    packages = hashlib.sha256(" ".join(engine.packages).encode()).hexdigest()[:8]
    return environments() / f"{engine.name}-{engine.version}-{tag}-{packages}"


def is_added(engine: Foreign) -> bool:
    return folder_of(engine).is_dir()


def command_of(engine_name: str) -> list[str] | None:
    """Return the command that starts the engine of that name; None if there is no such engine.

    Raises Unsupported if the engine is not added yet, or if its name lacks a required argument
    after the colon.
    """
    found = split_name(engine_name)
    if found is None:
        return None
    name, argument = found
    engine = ENGINES[name]
    if engine.takes and not argument:
        raise Unsupported(f"{name} needs a {engine.takes}: {name}:{engine.takes}")
    folder, program = folder_of(engine), str(PROGRAMS / engine.program)
    if not folder.is_dir():
        raise Unsupported(f"{name} is not added yet; add it: lockstep engine add {name}")
    if engine.kind == "node":
        return ["node", program, str(folder / ENTRY)]
    # -E and -s: the user's variables and packages must not be used
    return [str(interpreter(folder)), "-E", "-s", program, *filter(None, [argument])]


def add(name: str, progress: Progress = lambda _: None) -> Path:
    """Build the environment unless it exists, and return its folder. Raises NotBuilt if the build
    fails, and then leaves no files."""
    engine = engine_named(name)

    def make(new: Path) -> None:
        progress(StageText(f"building the environment of {name} {engine.version}: {engine.size}"))
        (make_python if engine.kind == "python" else make_node)(engine, new, progress)

    return built_once(folder_of(engine), make)


def make_python(engine: Foreign, new: Path, progress: Progress) -> None:
    run_command(
        [sys.executable, "-m", "venv", "--without-pip", str(new)],
        f"no environment for {engine.name}",
        lambda seconds: progress(f"making an environment{after(seconds)}"),
    )
    run_command(
        [
            *(sys.executable, "-m", "pip", "--python", str(interpreter(new)), "install"),
            *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
            *("--retries", "1", *engine.packages),
        ],
        f"pip could not install {engine.name}",
        lambda seconds: progress(f"pip installs {engine.packages[0]}{after(seconds)}"),
    )
    run_command(
        [str(interpreter(new)), "-I", "-c", f"import {engine.module}"],
        f"{engine.name} was installed and does not load",
        lambda seconds: progress(f"loading {engine.name}{after(seconds)}"),
    )


def make_node(engine: Foreign, new: Path, progress: Progress) -> None:
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise NotBuilt(f"{engine.name} needs node 20 or newer, and there is no {tool} here")
    new.mkdir()
    (new / "package.json").write_text('{"private": true}\n')
    (new / ENTRY).write_text(
        f'import * as all from "{engine.module}";\n'
        f'export const engine = {{ ...all, version: "{engine.version}" }};\n'
    )
    run_command(
        [
            *("npm", "install", "--prefix", str(new), "--ignore-scripts", "--no-audit"),
            *("--no-fund", "--loglevel", "error", *engine.packages),
        ],
        f"npm could not install {engine.name}",
        lambda seconds: progress(f"npm installs {engine.packages[0]}{after(seconds)}"),
    )
    run_command(
        ["node", str(new / ENTRY)],
        f"{engine.name} was installed and does not load",
        lambda seconds: progress(f"loading {engine.name}{after(seconds)}"),
    )


def remove(name: str) -> Path:
    """Remove an engine's environment. Raises Unsupported if there is none."""
    engine = engine_named(name)
    folder = folder_of(engine)
    if not folder.is_dir():
        raise Unsupported(f"{name} is not added, so there is nothing to remove")
    take_away(folder)
    return folder


def added_engines() -> Iterator[tuple[Foreign, Path | None]]:
    """Yield every engine with the folder of its environment; None if it is not built."""
    for engine in ENGINES.values():
        yield engine, folder_of(engine) if is_added(engine) else None
