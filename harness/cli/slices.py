"""`lockstep slice`: writes the first layers of a model as a model."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import QuietOpt
from lockstep.harness.runs.hints import LAYERS


def first_layers(
    model: Annotated[Path, typer.Argument(help="A GGUF file.", metavar="MODEL")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    layers: Annotated[
        int, typer.Option(help="Number of layers to keep, from the first.", min=1)
    ] = LAYERS,
    short: Annotated[
        bool,
        typer.Option(
            "--short",
            help="Let windows and factors of long contexts begin after few tokens, so "
            "that short texts show them.",
        ),
    ] = False,
    quiet: QuietOpt = False,
) -> None:
    """Write a model with the first layers of MODEL, and with all tensors outside the layers.

    Checking a model of several gigabytes takes minutes; checking its first two layers takes
    seconds. Weights, types, vocabulary and metadata stay the same, so mistakes in the computation
    of a layer still show. Lockstep compares llama.cpp's graphs of both files, to make sure that
    each layer is unchanged. It prints how many layers are needed to have each kind of layer. With
    --short, attention windows and long-context factors take effect after few tokens. Examples:

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
                f"layer {found.enough - 1} is of a different kind; --layers {found.enough} keeps "
                "one of each kind"
            )
