"""Reads the files that libFuzzer makes, with a reader whose branches atheris counts.

`python -m ...gguf.guided_reader MODULES PARENT [options of libFuzzer] FOLDER`: atheris counts the
branches of these modules, and the first module has a class GgufFile. Any exception except a refusal
ends the process. The process also ends if the reader uses too much memory for a file. libFuzzer
leaves the file that ended the process in the folder.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

SECONDS = 10.0  # processor time for one file, which usually takes microseconds
Read = Callable[[bytes], None]
Mutate = Callable[[bytes, int, int], bytes]


def main() -> None:
    names, parent, *options = sys.argv[1:]
    modules = names.split(",")
    import atheris

    with atheris.instrument_imports(include=modules):
        # imported before any module that imports it, so that it is instrumented
        reader = import_module(modules[0]).GgufFile
    from lockstep.harness.processes.limits import die_with

    die_with(parent=int(parent))
    from lockstep.harness.adapters.parts.reference_parse import stopwatch

    # a lambda, because atheris.Fuzz replaces atheris.Mutate
    mutate = grammatical(lambda raw, longest: atheris.Mutate(raw, longest))
    with stopwatch() as start:
        read = guard_reader(reader.from_bytes, start)
        atheris.Setup([sys.argv[0], *options], read, custom_mutator=mutate)
        atheris.Fuzz()


def guard_reader(open_file: Callable[[bytes], Any], start: Callable[[float], None]) -> Read:
    """Return a function that reads a file with limits of time and memory. libFuzzer's own alarm is
    not used, because it may go off during a report."""
    from lockstep.engine.errors import MalformedFile
    from lockstep.harness.adapters.parts.forked import peak_bytes
    from lockstep.harness.adapters.parts.parsing import allowed_memory
    from lockstep.harness.adapters.parts.reference_parse import digest_of

    def read(raw: bytes) -> None:
        start(SECONDS)
        before = peak_bytes()
        file = None
        with suppress(MalformedFile):
            file = open_file(raw)
        if (more := peak_bytes() - before) > allowed_memory("reference", len(raw)):
            raise MemoryError(f"{more} bytes for a file of {len(raw)}")
        if file is not None:
            digest_of(file)  # decodes all contents of the file

    return read


def grammatical(plain: Callable[[bytes, int], bytes]) -> Mutate:
    """Return a function that mutates a file. The function mutates half of the files like libFuzzer.
    For the others it changes a field, or makes a new file."""
    from lockstep.harness.fuzzers.gguf.grammar import change, numbers_of, of_several

    def mutate(raw: bytes, longest: int, seed: int) -> bytes:
        (draw,) = numbers_of(seed, "guided", 0, 1)
        choice = draw.below(8)
        if choice > 3:
            return plain(raw, longest)
        if choice == 0:
            return of_several(0, draw, ()).raw[:longest]
        made = bytearray(raw)
        change(made, draw)
        return bytes(made[:longest])

    return mutate


if __name__ == "__main__":
    main()
