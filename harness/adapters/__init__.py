"""One file per engine that can be asked; the only place that imports llama_cpp or gguf."""

import importlib
import importlib.util
import re

from engine.choices import choices
from engine.errors import Unsupported
from engine.registry import import_members
from harness.adapters._users import PREFIX, is_users, registered_names, users_class
from harness.adapters.base import Adapter

NAMES = "there are reference, fast, replay, llama.cpp, llama.cpp@VERSION, mutant:NAME, honest:NAME"
LAST_WITH_SBATCH = (0, 3, 9)  # of llama-cpp-python


def has_sbatch(version: str) -> bool:
    """Whether this version of llama.cpp splits with llama_sbatch (engine.memory.sbatch)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return release is not None and tuple(map(int, release[0].split("."))) <= LAST_WITH_SBATCH


def split_version(name: str) -> tuple[str, str]:
    """Engine and version of `NAME@VERSION`; the installed version has none, and no path has."""
    engine, _, version = name.partition("@")
    return (name, "") if "/" in engine or name.startswith(PREFIX) else (engine, version)


def adapter_class(name: str) -> type[Adapter]:
    """The adapter with that name, of any version; raises Unsupported, naming the choices.

    The file that is named after the engine is tried first, so that a worker does not load every
    other engine as well; then all adapters, then the engines that are wrong on purpose, then those
    that are right in another way. A class of the user's is for a worker to load: it is theirs.
    """
    if is_users(name):
        return users_class(name)
    name, _ = split_version(name)
    own = f"{__name__}.{re.sub(r'[^a-z0-9]', '_', name.lower())}"
    if name not in Adapter.family and importlib.util.find_spec(own):
        importlib.import_module(own)
    for package in (__name__, "harness.mutants", "harness.honest"):
        if name not in Adapter.family:
            import_members(package)
    if name not in Adapter.family:
        known = choices(name, sorted({*Adapter.family, *registered_names()}))
        more = f"{NAMES}, those of lockstep engine list, or a program: ./{name}"
        raise Unsupported(f"no engine named {name!r} {known}; {more}")
    return Adapter.named(name)
