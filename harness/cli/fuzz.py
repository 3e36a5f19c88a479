"""`lockstep fuzz TARGET`: cases without end, until two engines part."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.run import Listener, RunResult

app = typer.Typer(
    no_args_is_help=True,
    help="Random and directed cases, until two engines part; what differs is made small and named.",
)


ResumeOpt = Annotated[
    Path | None,
    typer.Option(help="Go on with this run's folder, where it was stopped; all else is as there."),
]


@app.command()
def quants(
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Only this weight type (repeatable).")
    ] = None,
    cases: Annotated[int, typer.Option(help="Blocks of each type.", min=1)] = 1_000_000,
    seconds: Annotated[
        float | None, typer.Option(help="Stop a type after that long.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the blocks.", min=0, max=2**63 - 1)] = 0,
    start: Annotated[
        int, typer.Option(help="The first case: go on where a run has stopped.", min=0)
    ] = 0,
    block: Annotated[
        list[str] | None, typer.Option(help="This block, as hex, instead (repeatable).")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="The engine under test: reference, gguf-py, mutant:NAME.")
    ] = "reference",
    oracle: Annotated[str, typer.Option(help="The engine it is held against.")] = "llama.cpp",
    resume: ResumeOpt = None,
    report: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("reports"),
    as_json: Annotated[
        bool, typer.Option("--json", help="A summary as JSON on standard output.")
    ] = False,
    jobs: Annotated[int, typer.Option("-j", help="Types side by side.", min=1)] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Decode blocks of any bytes with two engines and compare the bits of every weight.

    Half of the blocks are directed while there are any left: every value of every scale, every byte
    in every place, every pair of bytes in two fields. The rest is random. NaN equals NaN; where
    only its sign differs, that is counted. gguf-py sees one block in 64, and every one that
    differs. Examples:

    \b
      lockstep fuzz quants
      lockstep fuzz quants --type Q4_K --cases 10000000
      lockstep fuzz quants --type Q4_0 --block 003c08000000000000000000000000000000
    """
    from harness.cli.terminal import Terminal
    from harness.fuzzers.base import FuzzPlan, run_campaign
    from harness.run import Listener

    with Terminal(quiet=quiet, as_json=as_json) as out:
        plan = FuzzPlan(
            targets=tuple(dict.fromkeys(type_ or ())),
            engine=engine,
            oracle=oracle,
            cases=cases,
            start=start,
            seconds=seconds,
            seed=seed,
            given=tuple(map(from_hex, block or ())),
        )
        listener = Listener(progress=out.progress, verdict=out.verdict)
        command = ["lockstep", *sys.argv[1:]]
        if resume is None:
            result = run_campaign("quants", plan, report, command, jobs, listener)
        else:
            result = resumed("quants", resume, jobs, listener)
        out.summary(result)
    raise typer.Exit(result.code)


def resumed(name: str, folder: Path, jobs: int, listener: "Listener") -> "RunResult":
    from harness.fuzzers._resume import resume_campaign

    return resume_campaign(name, folder, jobs, listener)


def from_hex(text: str) -> bytes:
    from harness.check import BadInput

    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadInput(
            f"--block and --hex need pairs of hexadecimal digits, got {text[:40]!r}"
        ) from None
