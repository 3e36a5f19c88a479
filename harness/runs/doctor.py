"""`lockstep doctor`: versions, llama.cpp's build, CPU features, missing parts."""

import os
import shutil
import tempfile
from pathlib import Path

from lockstep.engine.activations.base import AMX
from lockstep.engine.batch import Batch
from lockstep.harness.adapters.llama_cpp.identity import (
    COMMIT,
    VERSION,
    WANTED,
    installed_folder,
    named_folder,
    why_not_pinned,
)
from lockstep.harness.asking.environments import WITHOUT_AMX, built_versions, has_amx
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import line_that_says_why, no_answer
from lockstep.harness.judging.lanes import lanes_of
from lockstep.harness.records import DEFAULT, EXACT, Answered, Crashed, Request
from lockstep.harness.report.header import versions
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.llama import write_llama

REBUILD = (
    f'a known fault of GCC 12; rebuild without AMX: CFLAGS="{WITHOUT_AMX}" '
    f'CXXFLAGS="{WITHOUT_AMX}" pip install --no-cache-dir --force-reinstall --no-deps '
    f"llama-cpp-python=={VERSION}"
)
Row = tuple[str, str, bool]  # name, value, True if the value is right


def examine() -> list[Row]:
    found = versions()
    rows: list[Row] = [
        (name, text, text != "absent") for name, text in found.items() if name != "llama-cpp-python"
    ]
    theirs = found["llama-cpp-python"]
    says = theirs if theirs == VERSION else f"{theirs}; the goldens are made with {VERSION}"
    rows.append(("llama-cpp-python", says, theirs == VERSION))
    rows.append(library_row())
    if rows[-1][2] or named_folder() is None:  # the user named no other build of llama.cpp
        rows += oracle_rows()
    rows += [
        ("another version", f"{name} in {folder}", True)
        for name, folder in built_versions("llama.cpp")
    ]
    rows.append(("processors", str(len(os.sched_getaffinity(0))), True))
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    rows.append(("C++ compiler", Path(compiler).name if compiler else "none found", bool(compiler)))
    return rows


def library_row() -> Row:
    """Return a row on the oracle's library. It gives the library's folder, and says if the library
    is the pinned version."""
    folder = named_folder() or installed_folder()
    if folder is None:
        return ("oracle", "llama.cpp is not installed", False)
    why = why_not_pinned(folder)
    is_pinned = f"{folder}: the exported symbols match the pinned llama.cpp {COMMIT}"
    return ("oracle", f"{why}. {WANTED}" if why else is_pinned, not why)


def oracle_rows() -> list[Row]:
    """Return rows about the oracle's build, as llama.cpp reports it."""
    with Runner(time_limit=60).open("llama.cpp", None, EXACT) as session:
        outcome = session.ask("describe")
    if not isinstance(outcome, Answered):
        why = line_that_says_why(str(no_answer("llama.cpp", "describe", outcome)))
        return [("llama.cpp", f"does not start: {why}", False)]
    build = outcome.value.build
    return [
        ("llama.cpp", outcome.value.version, True),
        ("llama.cpp build", build, True),
        ("float32 lanes", f"{lanes_of(build)} partial sums per vector register", True),
        *rounding_rows(),
        *amx_rows(),
    ]


def amx_rows() -> list[Row]:
    """Return a row that says if products with AMX work; no row for a build that does not use AMX.
    The fault is "gcc-amx-tiles" of the known divergences."""
    if not has_amx():
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q8_0.gguf"
        write_llama(BUILTIN["q8_0"], path)
        asked = Request(batches=(Batch.of([1, 2, 3]),))
        with Runner(time_limit=60).open("llama.cpp", path, DEFAULT) as session:
            info = session.ask("describe")
            if not isinstance(info, Answered) or AMX not in info.value.generic:
                return []  # the build or the system does not support it
            outcome = session.ask("evaluate", asked)
    if isinstance(outcome, Answered):
        return [("AMX products", "products of several tokens are computed", True)]
    why = "dies" if isinstance(outcome, Crashed) else "returns no result"
    says = f"llama.cpp {why} in products of several tokens (--settings default, servers): {REBUILD}"
    return [("AMX products", says, False)]


def rounding_rows() -> list[Row]:
    """Return rows on how the library rounds activations. Our products round in the same way
    (engine/activations)."""
    with Runner(time_limit=60).open("llama.cpp activations", None, EXACT) as session:
        outcome = session.ask("describe")
    if not isinstance(outcome, Answered):
        why = line_that_says_why(str(no_answer("llama.cpp", "describe", outcome)))
        return [("activations", f"llama.cpp does not report its rounding: {why}", False)]
    rows = []
    for part in outcome.value.build.split(" | "):
        name, _, variants = part.partition(": ")
        ways = " and ".join(f"as {variant} code" for variant in variants.split())
        says = ways or "in an unknown way; Lockstep rounds products as x86 code does"
        rows.append((f"{name} activations", f"rounded {says}", bool(ways)))
    return rows
