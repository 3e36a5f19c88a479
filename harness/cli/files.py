"""Commands about GGUF files themselves: `fuzz gguf`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli.fuzz import from_hex
from lockstep.harness.cli.options import HexOpt, OracleOpt

if TYPE_CHECKING:
    from lockstep.harness.fuzzers.base import FuzzPlan


def fuzz_gguf(
    family: Annotated[
        list[str] | None,
        typer.Option(help="Only these files: valid, broken, several, mutated, corpus, models."),
    ] = None,
    cases: Annotated[
        int | None,
        typer.Option(
            help="Number of files. Default: 250,000 of each family, a million in a guided round.",
            min=1,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Test only this file (repeatable).")
    ] = None,
    hex_: HexOpt = None,
    corpus: Annotated[
        Path | None, typer.Option(help="A folder of files to mutate, for the family `corpus`.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--guided",
            help="A folder. Make files until a whole round reaches no new branch of our reader, "
            "keep the files that reach one, and show them to every parser. Needs atheris.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="The parser under test: reference, llama.cpp. For a program, use `check`, which "
            "asks how it reads a model."
        ),
    ] = "reference",
    oracle: OracleOpt = "llama.cpp",
    witness: Annotated[
        bool,
        typer.Option(
            help="Also ask gguf-py, about a sample and every file on which other parsers differ."
        ),
    ] = True,
) -> "FuzzPlan":
    """Parse valid, unusual, broken and mutated files with every parser.

    Our parser and llama.cpp's in-memory parser see every file. llama.cpp's file parser (with and
    without data), vocab-only load and full load see some. gguf-py sees a few files, and all unusual
    ones. A crash ends only the process of one parser. The file that caused it is reported, and all
    other files are still compared. Findings are shrunk, and grouped by stage, symptom and kind.
    Examples:

    \b
      lockstep fuzz gguf -j 2
      lockstep fuzz gguf --family mutated --cases 1000000
      lockstep fuzz gguf --corpus models/ --family corpus --seconds 60
      lockstep fuzz gguf --family models --cases 10000
      lockstep fuzz gguf --guided kept/
      lockstep fuzz gguf --file broken.gguf
      lockstep fuzz gguf --resume reports/20261120-134501-fuzz-gguf
    """
    from lockstep.harness.fuzzers.base import FuzzPlan

    given = bool(file or hex_)
    return FuzzPlan(
        targets=("given",) if given else families(family or (), corpus, keep),
        engine=engine,
        oracle=oracle,
        cases=cases or (250_000 if keep is None else 1_000_000),
        given=tuple(map(from_hex, hex_ or ())),
        files=tuple(file or ()),
        corpus=corpus,
        witness=witness,
        keep=keep,
    )


def families(given: Sequence[str], corpus: Path | None, keep: Path | None) -> tuple[str, ...]:
    """Return the families of a campaign. A guided run has only its own family. A corpus without
    --family is added to all families."""
    if keep is not None:
        from lockstep.harness.check.check import BadInput

        if given:
            raise BadInput("--guided makes its own files: omit --family")
        return ("guided",)
    if given or corpus is None:
        return tuple(dict.fromkeys(given))
    from lockstep.harness.fuzzers.base import fuzzer_named

    return (*fuzzer_named("gguf").targets(), "corpus")
