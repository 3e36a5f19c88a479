"""`lockstep slice`: a model's first layers, as a model."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.hints import LAYERS
from lockstep.harness.cli.options import QuietOpt


def first_layers(
    model: Annotated[Path, typer.Argument(help="A GGUF file.", metavar="MODEL")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    layers: Annotated[int, typer.Option(help="So many, from the first on.", min=1)] = LAYERS,
    short: Annotated[
        bool, typer.Option("--short", help="Let short texts show what long ones do.")
    ] = False,
    quiet: QuietOpt = False,
) -> None:
    """Write the first layers of MODEL, with all that comes before and after them.

    Every command takes the time of all layers, which of a model of gigabytes is minutes; of its
    first two it is seconds, and whatever is wrong in how an engine computes a layer is wrong there:
    weights, types, vocabulary and metadata are the model's own. llama.cpp's graphs of both files
    are compared, so that each layer is what it was; it is said how many layers have one of each
    kind. With --short what long texts alone show begins after few tokens: windows, the factors of
    long contexts. Examples:

    \b
      lockstep slice model.gguf -o first.gguf
      lockstep check first.gguf --engine ./my-engine
      lockstep slice gemma.gguf -o first.gguf --layers 6 --short
    """
    from lockstep.harness.asking.template import keep_template
    from lockstep.harness.cli.shared import screen

    with keep_template(), screen(quiet) as out:
        from lockstep.harness.blackbox.first_layers import write_first_layers

        say = partial(out.progress, "slice")
        found = write_first_layers(model, layers, output, say, short=short)
        size = output.stat().st_size
        out.line(f"{output}: {found.n} of {found.of} layers, {size:,} bytes")
        if found.enough > found.n:
            out.remark(
                f"layer {found.enough - 1} is of another kind than these; "
                f"--layers {found.enough} has one of each"
            )
