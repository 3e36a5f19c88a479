"""`lockstep finding`: what engines from public packages were found to do, ready to be filed."""

from pathlib import Path
from typing import Annotated

import typer


def finding(
    name: Annotated[
        str | None, typer.Argument(help="Its id. Default: list all.", metavar="ID")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the smallest file that shows it.")
    ] = None,
) -> None:
    """What engines of `lockstep engine` were found to do otherwise than llama.cpp.

    With an ID: a text that can be filed as it is, with the commands that show it. Example:

    \b
      lockstep finding
      lockstep finding hyllama-latin-1
      lockstep finding hyllama-latin-1 -o case.gguf
    """
    from harness.cli.terminal import Terminal
    from harness.foreign.findings import text_of, write_case
    from harness.known.foreign import finding_named, foreign_findings

    with Terminal(quiet=True) as out:
        if name is None:
            for each in foreign_findings():
                out.line(f"{each.id:<34}{each.engine} {each.version}: {each.sentence}")
            return
        found = finding_named(name)
        if output is None:
            out.line(text_of(found))
            return
        write_case(found, output)
        out.line(f"wrote {output}")
