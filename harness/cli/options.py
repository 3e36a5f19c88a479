"""Options that several commands have, worded once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Preset(StrEnum):
    """harness.records.PRESETS has their settings."""

    exact = "exact"
    default = "default"


SeedOpt = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**63 - 1)]
OracleOpt = Annotated[
    str, typer.Option(help="The engine it is held against; llama.cpp@0.3.8 is that version.")
]
ReportOpt = Annotated[Path, typer.Option(help="Where run folders go.")]
TimeoutOpt = Annotated[
    float,
    typer.Option(help="Seconds that an engine has for one answer, and for its start.", min=0.1),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="A summary as JSON on standard output.")]
QuietOpt = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]

# of `fuzz`
SecondsOpt = Annotated[float | None, typer.Option(help="Stop each target after that long.", min=0)]
StartOpt = Annotated[int, typer.Option(help="The first case: go on where a run has ended.", min=0)]
TargetsOpt = Annotated[int, typer.Option("-j", help="Targets side by side.", min=1)]
ResumeOpt = Annotated[
    Path | None,
    typer.Option(help="Go on with this run's folder, where it was stopped; all else is as there."),
]
HexOpt = Annotated[
    list[str] | None, typer.Option("--hex", help="These bytes, as hex, instead (repeatable).")
]
