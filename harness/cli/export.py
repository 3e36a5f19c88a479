"""`lockstep golden export`: writes vectors for use in other projects."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import QuietOpt


class ExportLevel(StrEnum):
    """Level of an export, as in lockstep.golden.export.write.LEVELS."""

    tokens = "tokens"
    dequant = "dequant"
    dot = "dot"
    ops = "ops"
    logits = "logits"
    files = "files"
    samplers = "samplers"


class ExportForm(StrEnum):
    """Format of an export, as in lockstep.golden.export.write.FORMS."""

    json = "json"
    safetensors = "safetensors"
    c = "c"


def export(
    folder: Annotated[Path, typer.Argument(help="A new folder, or an empty one.", metavar="DIR")],
    level: Annotated[ExportLevel, typer.Option(help="The kind of vectors.")],
    form: Annotated[ExportForm, typer.Option("--as", help="c: C99 source, with a runner.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Only these vectors, such as q4_k (repeatable).")
    ] = None,
    quiet: QuietOpt = False,
) -> None:
    """Write the vectors of one level into a folder, with a page, a licence and hashes. Other
    projects can copy this folder.

    The exported files do not need Lockstep, and this command does not need llama.cpp. Examples:

    \b
      lockstep golden export vendor/dequant --level dequant --as c
      lockstep golden export q4_k --level dot --as json --only q4_k
      lockstep golden export runs --level logits --as safetensors
      lockstep golden export samplers --level samplers --as json
    """
    from lockstep.golden.export.write import export as write
    from lockstep.harness.cli.shared import screen

    with screen(quiet) as out:
        files = write(
            folder,
            level.value,
            form.value,
            only=tuple(only or ()),
            progress=lambda text: out.progress("golden", text),
        )
        size = sum(path.stat().st_size for path in files)
        out.line(f"{folder}: {len(files)} files, {size:,} bytes")
