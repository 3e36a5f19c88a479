"""`lockstep finding`: known faults of llama.cpp and of public engines, as texts to file as
issues."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import QuietOpt

NO_RUN = "the project's tests run its case; without --run and -o, lockstep finding prints it"


def finding(
    name: Annotated[
        str | None, typer.Argument(help="The finding's id. Default: list all.", metavar="ID")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the smallest file that shows the finding."),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Check that the finding is still true.")
    ] = False,
    quiet: QuietOpt = False,
) -> None:
    """List known faults of llama.cpp, of gguf-py, and of the engines of `lockstep engine`.

    With an ID, it prints a text to file as an issue, with the case or the commands that reproduce
    it. --run and -o are for engines of `lockstep engine`. Exit codes of --run: 0 the fault still
    occurs, 1 it does not, 3 the engine failed in another way. Example:

    \b
      lockstep finding
      lockstep finding hyllama-latin-1
      lockstep finding hyllama-latin-1 -o case.gguf
      lockstep finding hyllama-latin-1 --run
    """
    from lockstep.harness.check.inputs import check_folder_of
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.known.foreign import finding_named
    from lockstep.harness.known.own import own_differences
    from lockstep.harness.selftest.foreign_findings import (
        ending_of,
        is_seen_in,
        text_of,
        verdicts_on_case,
        write_case,
    )

    if name is None and (run or output is not None):
        raise typer.BadParameter("--run and -o need the ID of one finding")
    code, own = 0, {each.id: each for each in own_differences()}
    if name in own and (run or output is not None):
        raise typer.BadParameter(f"{name} is a fault of {own[name].component}: {NO_RUN}")
    with Terminal(quiet=quiet) as out:
        if name is None or name in own:
            out.line(own[name].report() if name else "\n".join(list_findings()))
            return
        found = finding_named(name)
        if output is not None:
            check_folder_of(output)
            write_case(found, output)
            out.line(f"wrote {output}")
        if run:
            verdicts = verdicts_on_case(found, lambda text: out.progress(name, text))
            for verdict in verdicts:
                if is_seen_in(found, verdict):
                    out.line(f"{verdict.suite}: {verdict.summary}")
            code, words = ending_of(found, verdicts)
            out.line(f"{name}: {words}")
        elif output is None:
            out.line(text_of(found))
    raise typer.Exit(code)


def list_findings() -> Iterator[str]:
    from lockstep.harness.known.foreign import foreign_findings
    from lockstep.harness.known.own import own_differences

    for own in own_differences():
        yield f"{own.id:<34}{own.component} {own.version}: {own.sentence}"
    for found in foreign_findings():
        yield f"{found.id:<34}{found.engine} {found.version}: {found.sentence}"
