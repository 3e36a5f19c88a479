"""The lines of our reader that some files reach, and the lines that they never reach."""

import dis
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.parts.reference_parse import digest_of

MODULES = (
    "lockstep.engine.gguf.file",
    "lockstep.engine.gguf.fields",
    "lockstep.engine.gguf.entries",
)
Place = tuple[str, int]  # a module's file, a line


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The number of lines reached, the other lines of these functions, and the functions that were
    never called."""

    lines: int
    never: tuple[str, ...]  # lines that were not reached, as `module:line: text`
    not_called: tuple[str, ...]


def find_reached(files: Iterable[bytes]) -> Reached:
    """Open the files in this process, decode all of their content, and return the lines reached."""
    modules = [import_module(name) for name in MODULES]
    seen = lines_reached(files, {str(module.__file__) for module in modules})
    lines, never, not_called = 0, [], []
    for module in modules:
        path = str(module.__file__)
        text = Path(path).read_text().splitlines()
        for function in functions_of(compile("\n".join(text), path, "exec")):
            inside = {line for _, line in dis.findlinestarts(function) if line}
            inside.discard(function.co_firstlineno)
            if not any((path, line) in seen for line in inside):
                not_called.append(function.co_qualname)
                continue
            lines += sum((path, line) in seen for line in inside)
            never += [f"{module.__name__}:{line}: {text[line - 1].strip()}"
                      for line in sorted(inside) if (path, line) not in seen]  # fmt: skip
    return Reached(lines=lines, never=tuple(never), not_called=tuple(not_called))


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the named functions. Code inside a function, such as a comprehension, belongs to it."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<"):
            if inner.co_flags & CO_NEWLOCALS:
                yield inner
            yield from functions_of(inner)


def lines_reached(files: Iterable[bytes], places: set[str]) -> set[Place]:
    """Return the lines that the files reach in the source files `places`. Exceptions are
    ignored."""
    found: set[Place] = set()

    def step(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in places:
            return None
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        for raw in files:
            with suppress(Exception):
                digest_of(GgufFile.from_bytes(raw))
    finally:
        sys.settrace(before)
    return found
