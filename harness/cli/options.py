"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


def check_float32(value: float) -> float:
    if not abs(value) <= LARGEST_FLOAT32:  # NaN is not smaller either
        raise typer.BadParameter(f"{value:g} does not fit a finite float32")
    return value


class Preset(StrEnum):
    """Name of a preset; lockstep.harness.records.PRESETS has their settings."""

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
        help="The engine under test: a command that starts it (./my-engine --fast; try it with "
        "lockstep smoke), a name from lockstep engine list, a server's address "
        "(http://localhost:8080, openai:ADDRESS), serve:COMMAND to start a server for each "
        "model ('serve:./my-server -m {model} --port {port}'), dump:FOLDER, adapter:MODULE, "
        "a name that an installed package registers, or reference, fast, replay, llama.cpp, "
        "llama.cpp@VERSION, mutant:NAME, honest:NAME."
    ),
]
AdapterOpt = Annotated[
    str | None,
    typer.Option(
        help="Your Python class as the engine under test: MODULE or path/to/file.py, followed by "
        ":CLASS if there are several. The same as --engine adapter:MODULE.",
        metavar="MODULE",
    ),
]
PresetOpt = Annotated[
    Preset | None,
    typer.Option(
        help="exact: F32 cache, no flash attention, one thread. default: the settings of most "
        "llama.cpp users (F16 cache, flash attention). Default: exact, or default for a "
        "server, which does not report its settings."
    ),
]
SettingsOpt = Annotated[
    str | None,
    typer.Option(
        help="exact: F32 cache, no flash attention, one thread. default: the settings of most "
        "llama.cpp users (F16 cache, flash attention). Or single settings: cache=Q8_0 (cache_k, "
        "cache_v), flash=on, threads=4, ctx=2048, after a preset or alone; or a TOML file of them. "
        "Default: exact, or default for a server, which does not report its settings.",
        metavar="PRESET|KEY=VALUE,...|FILE",
    ),
]
LoraOpt = Annotated[
    list[str] | None,
    typer.Option(
        help="Add this LoRA file (GGUF) in both engines (repeatable). Default scale: 1. Suites "
        "that make models from yours are not run.",
        metavar="FILE[=SCALE]",
    ),
]
ControlVectorOpt = Annotated[
    list[str] | None,
    typer.Option(
        help="Add this control vector (GGUF) in both engines (repeatable). Default strength: 1.",
        metavar="FILE[=STRENGTH]",
    ),
]
SubjectOpt = Annotated[
    Path | None, typer.Option(help="Give the engine under test this file instead of MODEL.")
]
ArchOpt = Annotated[
    str | None,
    typer.Option(help="Make a model of this architecture, as synth does; all: every architecture."),
]
MapOpt = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="Names of the dump's tensors: transformers, llama.cpp, or a TOML file of yours. Its "
        'table nodes maps your names to llama.cpp\'s: "layers.{layer}.mlp" = "ffn_out-{layer}".',
    ),
]
TokensOpt = Annotated[int, typer.Option(help="Length of the prompt.", min=1, max=4096)]
SeedOpt = Annotated[int, typer.Option(help="Seed of all random numbers.", min=0, max=2**63 - 1)]
OracleOpt = Annotated[
    str, typer.Option(help="The engine to compare with. llama.cpp@0.3.8 is that version.")
]
ReportOpt = Annotated[
    Path, typer.Option(help="The folder for reports; each run makes a folder in it.")
]
TimeoutOpt = Annotated[
    float,
    typer.Option(help="Seconds an engine may take to start, and for each answer.", min=0.1),
]
JsonOpt = Annotated[
    bool, typer.Option("--json", help="Print a summary as JSON on standard output.")
]
QuietOpt = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]

# options of `fuzz`
SecondsOpt = Annotated[
    float | None, typer.Option(help="Stop each target after this many seconds.", min=0)
]
StartOpt = Annotated[
    int, typer.Option(help="Number of the first case, to continue a finished run.", min=0)
]
TargetsOpt = Annotated[int, typer.Option("-j", help="Targets to run in parallel.", min=1)]
ResumeOpt = Annotated[
    Path | None,
    typer.Option(help="Continue the run in this folder where it stopped, with that run's options."),
]
HexOpt = Annotated[
    list[str] | None,
    typer.Option("--hex", help="Test only these bytes, given as hex (repeatable)."),
]
ClusterOpt = Annotated[
    str | None,
    typer.Option(
        help="Address of a Dask scheduler (tcp://HOST:8786) whose workers do the work, instead of "
        "-j. Each worker needs this Lockstep with the extra `cluster`, and the same paths: "
        "the current folder, models, TMPDIR. If a worker dies, another repeats its work. "
        "Dask sends pickles between its nodes: use a network that you trust.",
        metavar="ADDRESS",
    ),
]
