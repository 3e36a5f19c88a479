"""`lockstep fuzz batch`: schedules of decode calls and cache operations."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli import fuzz as fuzz_cli
from lockstep.harness.cli.formats import FormatOpt
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


def fuzz_batch(
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="Only this memory: attention, window, recurrent, hybrid, or yarn (attention, "
            "keys stretched); with llama.cpp@0.3.9 or older: attention, recurrent, pooled "
            "(repeatable).",
        ),
    ] = None,
    cases: Annotated[int, typer.Option(help="Schedules for each kind of memory.", min=1)] = 1000,
    seconds: SecondsOpt = None,
    seed: SeedOpt = 0,
    start: StartOpt = 0,
    schedule: Annotated[
        list[str] | None, typer.Option(help="This schedule, as JSON, instead (repeatable).")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="The engine under test: reference, llama.cpp, llama.cpp@VERSION.")
    ] = "reference",
    oracle: OracleOpt = "llama.cpp",
    resume: ResumeOpt = None,
    report: ReportOpt = Path("reports"),
    formats: FormatOpt = None,
    as_json: JsonOpt = False,
    jobs: TargetsOpt = 1,
    cluster: ClusterOpt = None,
    quiet: QuietOpt = False,
) -> None:
    """Run schedules of decode calls and cache operations on two engines, and on each one twice.

    Compared: return codes, positions, each ubatch and the cells looked at for it, and logits. Then
    an engine against itself: what other sequences say must not change a bit, ubatches of another
    size no more than rounding does. What differs is made small and told once.

    Against llama.cpp@0.3.8 or older the batches alone are compared, as llama_sbatch took them
    apart (types attention, recurrent and pooled). Examples:

    \b
      lockstep fuzz batch
      lockstep fuzz batch --type window --cases 20000 --seed 7
      lockstep fuzz batch --oracle llama.cpp@0.3.8
    """
    from lockstep.harness.fuzzers.base import FuzzPlan
    from lockstep.harness.fuzzers.batch.fuzzer import kinds_for

    def plan() -> FuzzPlan:
        return FuzzPlan(
            targets=tuple(dict.fromkeys(type_ or kinds_for(oracle, engine))),
            engine=engine,
            oracle=oracle,
            cases=cases,
            start=start,
            seconds=seconds,
            seed=seed,
            given=tuple(text.encode() for text in schedule or ()),
        )

    fuzz_cli.campaign(
        "batch",
        plan,
        resume,
        report,
        formats,
        jobs=jobs,
        cluster=cluster,
        as_json=as_json,
        quiet=quiet,
    )
