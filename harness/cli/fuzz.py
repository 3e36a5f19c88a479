"""`lockstep fuzz TARGET`: endless random cases, until two engines differ."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.harness.cli.formats import FormatOpt, formats_wanted, write_formats
from lockstep.harness.cli.options import (
    ClusterOpt,
    JsonOpt,
    OracleOpt,
    QuietOpt,
    ReportOpt,
    ResumeOpt,
    SecondsOpt,
    SeedOpt,
    StartOpt,
    TargetsOpt,
)

if TYPE_CHECKING:
    from lockstep.harness.fuzzers.base import FuzzPlan

app = typer.Typer(
    no_args_is_help=True,
    help="Try random and directed cases until two engines diverge. Lockstep shrinks each "
    "difference and names it.",
)


def add(name: str, makes: "Callable[..., FuzzPlan]") -> None:
    """Add `lockstep fuzz NAME`, from a function that turns its options into a plan. The command
    also gets the options of `campaign`, which all fuzzers share."""
    shared = inspect.signature(campaign).parameters
    options = {key: row for key, row in shared.items() if row.kind is row.KEYWORD_ONLY}

    def command(**given: Any) -> None:
        rest = {key: given.pop(key) for key in options}
        campaign(name, partial(makes, **given), **rest)

    both = {**inspect.signature(makes).parameters, **options}
    rows = [row.replace(kind=row.KEYWORD_ONLY) for row in both.values()]
    command.__signature__ = inspect.Signature(rows)  # type: ignore[attr-defined]
    app.command(name, help=inspect.getdoc(makes))(command)


def campaign(
    name: str,
    makes: "Callable[[], FuzzPlan]",
    *,
    seconds: SecondsOpt = None,
    seed: SeedOpt = 0,
    start: StartOpt = 0,
    resume: ResumeOpt = None,
    report: ReportOpt = Path("reports"),
    formats: FormatOpt = None,
    as_json: JsonOpt = False,
    jobs: TargetsOpt = 1,
    cluster: ClusterOpt = None,
    quiet: QuietOpt = False,
) -> None:
    """Run a campaign, and end with its exit code. A wrong plan gives a one-line error, like all bad
    input."""
    from dataclasses import replace

    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.fuzzers.base import run_campaign
    from lockstep.harness.fuzzers.resume import resume_campaign
    from lockstep.harness.parallel.cluster import executor_for
    from lockstep.harness.runs.run import Listener

    with (
        Terminal(quiet=quiet, as_json=as_json) as out,
        executor_for(jobs, cluster) as executor,
    ):
        wanted = formats_wanted(formats)
        listener = Listener(progress=out.progress, verdict=out.verdict)
        if resume is None:
            plan = replace(makes(), seconds=seconds, seed=seed, start=start)
            command = ["lockstep", *sys.argv[1:]]
            result = run_campaign(name, plan, report, command, executor, listener)
        else:
            result = resume_campaign(name, resume, executor, listener)
        n = len({verdict.case for verdict in result.verdicts})
        each = (
            f"note: --seconds {seconds:g} applies to each of {n} targets"
            if seconds and n > 1
            else ""
        )
        out.summary(result, next_step=each)
        write_formats(wanted, result.folder, out)
    raise typer.Exit(result.code)


def fuzz_quants(
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Only this weight type (repeatable).")
    ] = None,
    cases: Annotated[int, typer.Option(help="Blocks of each type.", min=1)] = 1_000_000,
    block: Annotated[
        list[str] | None, typer.Option(help="Test only this block, given as hex (repeatable).")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="The engine under test, as in check, or reference, gguf-py, mutant:NAME."
        ),
    ] = "reference",
    oracle: OracleOpt = "llama.cpp",
) -> "FuzzPlan":
    """Decode blocks of arbitrary bytes with two engines and compare the bits of every weight.

    Half of the blocks are systematic, until all of these are used: every value of every scale,
    every byte in every place, every pair of bytes in two fields. The other blocks are random. Two
    NaN values count as equal; NaN values with different signs are counted. gguf-py sees one block
    in 64, and every block that differs. Examples:

    \b
      lockstep fuzz quants
      lockstep fuzz quants --type Q4_K --cases 10000000
      lockstep fuzz quants --type Q4_0 --block 003c08000000000000000000000000000000
    """
    from lockstep.harness.fuzzers.base import FuzzPlan

    return FuzzPlan(
        targets=tuple(dict.fromkeys(type_ or ())),
        engine=engine,
        oracle=oracle,
        cases=cases,
        given=tuple(map(from_hex, block or ())),
    )


def from_hex(text: str) -> bytes:
    from lockstep.harness.check.check import BadInput

    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadInput(
            f"--block and --hex need pairs of hexadecimal digits, got {text[:40]!r}"
        ) from None
