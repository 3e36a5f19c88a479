"""Engines under test and oracles, one per file. No other module imports llama_cpp or gguf."""

import importlib
import importlib.util
import re

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.parts.users import PREFIX, is_users, registered_names, users_class

NAMES = "known: reference, fast, replay, llama.cpp, llama.cpp@VERSION, mutant:NAME, honest:NAME"
# engines outside the packages below; `replay` computes along llama.cpp's graph
ELSEWHERE = {"replay": "lockstep.harness.graph.engine"}
PACKAGES = (
    *(__name__, "lockstep.harness.adapters.llama_cpp", "lockstep.harness.adapters.gguf_py"),
    *("lockstep.harness.mutants", "lockstep.harness.honest"),
)
LAST_WITH_SBATCH = (0, 3, 9)  # last version of llama-cpp-python with sbatch


def has_sbatch(version: str) -> bool:
    """Return True if this version of llama.cpp splits batches with llama_sbatch
    (engine.memory.sbatch)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return release is not None and tuple(map(int, release[0].split("."))) <= LAST_WITH_SBATCH


def split_version(name: str) -> tuple[str, str]:
    """Return the engine and the version of `NAME@VERSION`. The version is "" for the installed
    version, and for paths. Raises Unsupported if nothing follows the @."""
    engine, at, version = name.partition("@")
    if "/" in engine or name.startswith(PREFIX):
        return name, ""
    if at and not version:
        raise Unsupported(f"{name!r} is not a version; expected a name such as {engine}@0.3.8")
    return engine, version


def adapter_class(name: str) -> type[Adapter]:
    """Return the adapter with that name, of any version. Raises Unsupported with the known names if
    there is none.

    The file named after the engine is tried first, so that a worker need not load all other
    engines. Then come all adapters, the engines that are wrong on purpose, and the honest engines
    of other designs. Only a worker may load a user's class.
    """
    if is_users(name):
        return users_class(name)
    name, _ = split_version(name)
    own = ELSEWHERE.get(name) or f"{__name__}.{re.sub(r'[^a-z0-9]', '_', name.lower())}"
    if name not in Adapter.family and (found := importlib.util.find_spec(own)):
        importlib.import_module(f"{own}.adapter" if found.submodule_search_locations else own)
    for package in PACKAGES:
        if name not in Adapter.family:
            import_members(package)
    if name not in Adapter.family:
        known = choices(name, sorted({*Adapter.family, *registered_names()}))
        more = f"{NAMES}, the names of lockstep engine list, or a program: ./{name}"
        raise Unsupported(f"no engine named {name!r} {known}; {more}")
    return Adapter.member(name)
