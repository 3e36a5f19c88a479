"""The command `golden ops`, which judges an engine's own answers to the vectors of operations."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import QuietOpt


def ops(
    answers: Annotated[
        Path,
        typer.Option(
            help="A folder with one NAME.safetensors for each operation that the engine answered."
        ),
    ],
    only: Annotated[
        list[str] | None, typer.Option(help="Only this operation, such as rope (repeatable).")
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="The folder of vectors. Default: the ones that ship.")
    ] = None,
    quiet: QuietOpt = False,
) -> None:
    """Judge the results that an engine wrote into files, as tensors CASE/OUTPUT (see
    golden/README.md). An engine need not have every operation. The output lists operations without
    a file, and files without an operation. If an engine answers only some cases of an operation,
    the exit code is 3. The exit code is 1 if a result is wrong, and 3 if there are no results.
    Example:

    \b
      lockstep golden ops --answers answers/
    """
    from lockstep.golden.answers import counted_verdicts, judge_answers
    from lockstep.golden.store import DEFAULT_ROOT
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.exit_codes import exit_code

    with Terminal(quiet=quiet) as out:
        root = vectors or DEFAULT_ROOT
        found = list(
            judge_answers(
                answers, root, lambda op: out.progress("golden", op), only=tuple(only or ())
            )
        )
        for verdict in found:
            if verdict.status != "agreed":
                out.line(f"{verdict.status}: {verdict.summary}")
        right, wrong = (
            len({v.case for v in found if v.status == status}) for status in ("agreed", "diverged")
        )
        out.line(f"{right} operations agree, {wrong} do not")
    raise typer.Exit(exit_code(counted_verdicts(found)))
