"""A user's class: in a module, in a file, or registered by an installed package.

The user's code is imported only in the worker, where it may crash, hang and print.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.records import EngineInfo
from lockstep.harness.sites import SITES

PREFIX = "adapter:"
GROUP = "lockstep.engines"  # group of entry points: NAME = "package.module:Class"
# level of harness.protocol by the method that answers it
LEVELS = {
    "parse": "metadata",
    **{name: name for name in ("tokenize", "detokenize", "dequantize", "multiply", "operate")},
    **{name: name for name in ("sample", "embed", "generate", "greedy", "logprobs")},
    **{name: name for name in ("save", "load", "guide")},
    "logits": "evaluate",
}


def is_users(name: str) -> bool:
    return name.startswith(PREFIX) or find_registered(name) is not None


def find_registered(name: str) -> EntryPoint | None:
    """Return the engine that an installed package registers under that name; None if no package
    registers the name, or if one of our own engines has it.

    Raises Unsupported if two packages register the name.
    """
    if ":" in name or "/" in name or "@" in name or is_ours(name):
        return None
    found = [entry for entry in installed_engines() if entry.name == name]
    if len({entry.value for entry in found}) > 1:
        packages = ", ".join(sorted(entry.dist.name for entry in found if entry.dist))
        raise Unsupported(f"several packages register an engine named {name!r}: {packages}")
    return found[0] if found else None


def installed_engines() -> tuple[EntryPoint, ...]:
    """Return the engines that installed packages register."""
    return installed_in(tuple((path, changed_at(path)) for path in map(os.path.abspath, sys.path)))


# cached, because a check calls this several times, and each call reads the metadata of all packages
@lru_cache(1)
def installed_in(path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Return the installed engines, cached by path. path: `sys.path` with modification times, which
    change if a package is installed."""
    return tuple(entry_points(group=GROUP))


def changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def is_ours(name: str) -> bool:
    file = name.lower().replace(".", "_").replace("-", "_")
    return (
        file.isidentifier()
        and importlib.util.find_spec(f"lockstep.harness.adapters.{file}") is not None
    )


def registered_names() -> list[str]:
    return sorted({entry.name for entry in installed_engines()})


def users_class(name: str) -> type[Adapter]:
    """Return the user's adapter class. Raises Unsupported with one sentence if this fails."""
    entry = None if name.startswith(PREFIX) else find_registered(name)
    address = entry.value if entry else name.removeprefix(PREFIX)
    place, _, wanted = address.strip().partition(":")
    module = module_at(place)
    found: type[Adapter] = only(classes_in(module), wanted, place)
    if "name" not in vars(found):
        found.name = found.__name__
    return found


def module_at(place: str) -> ModuleType:
    path = Path(place)
    is_file = path.suffix == ".py" or os.sep in place
    if is_file and not path.is_file():
        raise Unsupported(f"{place}: no such file")
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    try:
        return module_in(path) if is_file else importlib.import_module(place)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        what = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise Unsupported(f"{place} cannot be imported: {what}{line_in(error)}") from error


def module_in(path: Path) -> ModuleType:
    # a prefix, because a file engine.py must not replace our package
    name = f"lockstep_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look the module up there
    spec.loader.exec_module(module)
    return module


def line_in(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback, as text; "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def classes_in(module: ModuleType) -> dict[str, type[Adapter]]:
    """Return the engines that the module defines. If it defines no engine, return the engines that
    it imports."""
    found = {
        name: held
        for name, held in vars(module).items()
        if isclass(held)
        and issubclass(held, Adapter)
        and not held.__module__.startswith("lockstep.")
        and not name.startswith("_")
    }
    own = {name: held for name, held in found.items() if held.__module__ == module.__name__}
    return own or found


def only(classes: dict[str, type[Adapter]], wanted: str, place: str) -> type[Adapter]:
    known = ", ".join(classes)
    if wanted and wanted not in classes:
        raise Unsupported(f"{place} has no engine {wanted!r} (known: {known or 'none'})")
    if not classes:
        text = f"{place} defines no subclass of lockstep.Adapter"
        raise Unsupported(f"{text}; lockstep protocol --guide shows one")
    if len(set(classes.values())) > 1 and not wanted:
        first = next(iter(classes))
        raise Unsupported(f"{place} defines several engines: {known}; name one: {place}:{first}")
    return classes[wanted] if wanted else next(iter(classes.values()))


def lacks(cls: type[Adapter], question: str) -> bool:
    """Return True if the user's class does not define a method for the question, which is then not
    asked."""
    return question != "describe" and getattr(cls, question) is getattr(Adapter, question)


def add_levels(cls: type[Adapter], info: Any) -> Any:
    """Return the info with the levels that the class's methods offer. Without `shows`, the class
    counts as showing no tensors."""
    if type(info) is not EngineInfo:
        return info  # another function checks this answer
    levels = tuple(level for level, method in LEVELS.items() if not lacks(cls, method))
    ours = str(getattr(cls.evaluate, "__module__", "")).startswith("lockstep.")
    if info.shows is None and not (ours and "logits" in levels):
        info = replace(info, shows=(), fixed=tuple(SITES))
    return replace(info, levels=levels)
