"""Options that several commands have, worded once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Preset(StrEnum):
    """lockstep.harness.records.PRESETS has their settings."""

    exact = "exact"
    default = "default"


ModelArg = Annotated[Path, typer.Argument(help="A GGUF file, or builtin:NAME.", metavar="MODEL")]
OptModelArg = Annotated[
    Path | None,
    typer.Argument(help="A GGUF file, or builtin:NAME. Default: every built-in model."),
]
EngineOpt = Annotated[
    str,
    typer.Option(
        help="The engine under test: a command that starts yours (./my-engine --fast; lockstep "
        "smoke says how far it gets), one of lockstep engine list, a server's address "
        "(http://localhost:8080, openai:ADDRESS), serve:COMMAND which starts one for each model "
        "('serve:./my-server -m {model} --port {port}'), dump:FOLDER, adapter:MODULE, a name that "
        "an installed package registers, or reference, fast, replay, llama.cpp, llama.cpp@VERSION, "
        "mutant:NAME, honest:NAME."
    ),
]
AdapterOpt = Annotated[
    str | None,
    typer.Option(
        help="The engine under test as a Python class of yours: MODULE or path/to/file.py, with "
        ":CLASS behind it if there are several. The same as --engine adapter:MODULE.",
        metavar="MODULE",
    ),
]
SettingsOpt = Annotated[
    Preset | None,
    typer.Option(
        help="exact: F32 cache, no flash attention, one thread. default: what users of llama.cpp "
        "run (F16 cache, flash attention). Default: exact; of a server, which says nothing of "
        "its settings, default."
    ),
]
SubjectOpt = Annotated[
    Path | None, typer.Option(help="Give the engine under test this file instead of MODEL.")
]
ArchOpt = Annotated[
    str | None,
    typer.Option(help="Make a model of this architecture, as synth does; all: of every one."),
]
MapOpt = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="Translates the names of a dump's tensors: transformers, llama.cpp, or a TOML file "
        'of yours, whose table nodes has lines such as "layers.{layer}.mlp" = "ffn_out-{layer}": '
        "your name, and llama.cpp's.",
    ),
]
TokensOpt = Annotated[int, typer.Option(help="Length of the prompt.", min=1, max=4096)]
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
ClusterOpt = Annotated[
    str | None,
    typer.Option(
        help="Address of a Dask scheduler (tcp://HOST:8786) whose workers do the work, instead of "
        "-j. Each needs this Lockstep with its extra `cluster`, and the same files under the same "
        "paths: the folder this is started in, models, TMPDIR. A worker that dies costs time, no "
        "result. Nodes of Dask send each other pickles: only in a network that you trust.",
        metavar="ADDRESS",
    ),
]
