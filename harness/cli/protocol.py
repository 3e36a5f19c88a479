"""`lockstep protocol`: the questions to a program, and small example engines."""

from enum import StrEnum
from importlib.resources import files
from typing import Annotated

import typer


class Language(StrEnum):
    PYTHON = "python"
    JAVASCRIPT = "javascript"
    C = "c"
    SAMPLER = "sampler"
    SAMPLER_C = "sampler-c"
    SAMPLER_JAVASCRIPT = "sampler-javascript"


FILES = {
    Language.PYTHON: "engine.py",
    Language.JAVASCRIPT: "engine.mjs",
    Language.C: "engine.c",
    Language.SAMPLER: "sampler.py",
    Language.SAMPLER_C: "sampler.c",
    Language.SAMPLER_JAVASCRIPT: "sampler.mjs",
}


def protocol(
    example: Annotated[
        Language | None,
        typer.Option(
            help="Print an example engine of at most 150 lines. python and javascript run llama "
            "models with F32 weights. c decodes weights (F32, F16, Q4_0, Q8_0) and "
            "multiplies by them. sampler (in Python), sampler-c and sampler-javascript "
            "choose tokens."
        ),
    ] = None,
    guide: Annotated[
        bool,
        typer.Option(
            "--guide",
            help="Print how to connect other kinds of engines: servers, Python classes, folders "
            "of tensors.",
        ),
    ] = False,
) -> None:
    """Print the protocol between Lockstep and an engine under test: lines of JSON. An engine may
    answer only some kinds of questions.

    Examples:

    \b
      lockstep protocol
      lockstep protocol --guide
      lockstep protocol --example python > engine.py
      lockstep smoke -- python engine.py
    """
    if example and guide:
        raise typer.BadParameter("take --example or --guide, not both")
    path = files("lockstep") / "harness" / "protocol" / "PROTOCOL.md"
    if example or guide:
        path = (
            files("lockstep")
            / "harness"
            / "examples"
            / (FILES[example] if example else "README.md")
        )
    typer.echo(path.read_text(encoding="utf-8"), nl=False)
