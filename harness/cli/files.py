"""Commands about GGUF files as such: `fuzz gguf`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import fuzz as fuzz_cli


def fuzz_gguf(
    family: Annotated[
        list[str] | None,
        typer.Option(help="Only these files: valid, broken, several, mutated, corpus."),
    ] = None,
    cases: Annotated[int, typer.Option(help="Files of each family.", min=1)] = 250_000,
    seconds: Annotated[
        float | None, typer.Option(help="Stop a family after that long.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the files.", min=0, max=2**63 - 1)] = 0,
    start: Annotated[
        int, typer.Option(help="The first case: go on where a run has ended.", min=0)
    ] = 0,
    file: Annotated[list[Path] | None, typer.Option(help="This file instead (repeatable).")] = None,
    hex_: Annotated[
        list[str] | None, typer.Option("--hex", help="These bytes instead (repeatable).")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="A folder of files to mutate, for the family `corpus`.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="The parser under test: reference, llama.cpp.")
    ] = "reference",
    oracle: Annotated[str, typer.Option(help="The parser it is held against.")] = "llama.cpp",
    resume: fuzz_cli.ResumeOpt = None,
    report: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("reports"),
    as_json: Annotated[
        bool, typer.Option("--json", help="A summary as JSON on standard output.")
    ] = False,
    jobs: Annotated[int, typer.Option("-j", help="Families side by side.", min=1)] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Parse files that are valid, unusual, broken in named ways or mutated, with every parser.

    Ours and llama.cpp's parser in memory see every file; its parser of files, of files with their
    data, its vocab-only and full load and gguf-py see some, and all that is found. A crash costs a
    process and no file. Findings fold by stage, symptom and kind, and are made small. Examples:

    \b
      lockstep fuzz gguf -j 2
      lockstep fuzz gguf --family mutated --cases 1000000
      lockstep fuzz gguf --corpus models/ --family corpus --seconds 60
      lockstep fuzz gguf --file broken.gguf
      lockstep fuzz gguf --resume reports/20261120-134501-fuzz-gguf
    """
    from harness.cli.terminal import Terminal
    from harness.fuzzers.base import FuzzPlan, run_campaign
    from harness.run import Listener

    with Terminal(quiet=quiet, as_json=as_json) as out:
        listener = Listener(progress=out.progress, verdict=out.verdict)
        if resume is None:
            given = (*map(read_file, file or ()), *map(fuzz_cli.from_hex, hex_ or ()))
            plan = FuzzPlan(
                targets=("given",) if given else families(family or (), corpus),
                engine=engine,
                oracle=oracle,
                cases=cases,
                start=start,
                seconds=seconds,
                seed=seed,
                given=given,
                corpus=files_in(corpus),
            )
            command = ["lockstep", *sys.argv[1:]]
            result = run_campaign("gguf", plan, report, command, jobs, listener)
        else:
            result = fuzz_cli.resumed("gguf", resume, jobs, listener)
        out.summary(result)
    raise typer.Exit(result.code)


def families(given: Sequence[str], corpus: Path | None) -> tuple[str, ...]:
    """A corpus is there to be used."""
    if given or corpus is None:
        return tuple(dict.fromkeys(given))
    from harness.fuzzers.base import fuzzer_named

    return (*fuzzer_named("gguf").targets(), "corpus")


def files_in(folder: Path | None) -> tuple[Path, ...]:
    from harness.check import BadInput

    if folder is None:
        return ()
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder of GGUF files")
    return tuple(sorted(path for path in folder.rglob("*") if path.suffix in (".gguf", ".bin")))


def read_file(path: Path) -> bytes:
    from harness.check import BadInput

    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
