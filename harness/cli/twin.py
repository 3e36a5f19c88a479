"""`lockstep twin`: writes a model with the same values and without quantisation."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import QuietOpt


def twin(
    model: Annotated[Path, typer.Argument(help="A GGUF file.", metavar="MODEL")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    quiet: QuietOpt = False,
) -> None:
    """Write MODEL with every matrix decoded to F32. Metadata stay the same, except the file type.

    llama.cpp converts activations to 8 bits before it multiplies them by quantised weights. An
    engine that does not convert them is right too, so limits for logits and text must be wide. The
    twin needs no conversion, so a difference between two engines on the twin is an error. Examples:

    \b
      lockstep twin model.gguf -o twin.gguf
      lockstep check twin.gguf
      lockstep check model.gguf --subject-model twin.gguf --suite dequant
    """
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.synth.twin import write_twin

    with screen(quiet) as out:
        n = write_twin(model, output, lambda text: out.progress("twin", text))
        size = output.stat().st_size
        out.line(f"{output}: {n} tensors decoded to F32, {size:,} bytes")
