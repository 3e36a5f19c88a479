"""`lockstep fuzz batch`: schedules of decode calls and cache operations."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def fuzz_batch(
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only this memory: attention, window, recurrent (repeatable)."),
    ] = None,
    cases: Annotated[int, typer.Option(help="Schedules for each kind of memory.", min=1)] = 1000,
    seconds: Annotated[
        float | None, typer.Option(help="Stop a kind after that long.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the schedules.", min=0, max=2**63 - 1)] = 0,
    start: Annotated[
        int, typer.Option(help="The first case: go on where a run has stopped.", min=0)
    ] = 0,
    schedule: Annotated[
        list[str] | None, typer.Option(help="This schedule, as JSON, instead (repeatable).")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="The engine under test: reference, llama.cpp.")
    ] = "reference",
    oracle: Annotated[str, typer.Option(help="The engine it is held against.")] = "llama.cpp",
    report: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("reports"),
    as_json: Annotated[
        bool, typer.Option("--json", help="A summary as JSON on standard output.")
    ] = False,
    jobs: Annotated[int, typer.Option("-j", help="Kinds side by side.", min=1)] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run schedules of decode calls and cache operations on two engines, and on each one twice.

    Compared: return codes, positions, each ubatch and the cells looked at for it, and logits. Then
    an engine against itself: what other sequences say must not change a bit, ubatches of another
    size no more than rounding does. What differs is made small and told once. Examples:

    \b
      lockstep fuzz batch
      lockstep fuzz batch --type window --cases 20000 --seed 7
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
            given=tuple(text.encode() for text in schedule or ()),
        )
        listener = Listener(progress=out.progress, verdict=out.verdict)
        command = ["lockstep", *sys.argv[1:]]
        result = run_campaign("batch", plan, report, command, jobs, listener)
        out.summary(result)
    raise typer.Exit(result.code)
