"""`lockstep smoke`: how far a program gets in the protocol."""

from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from harness.cli.options import JsonOpt, QuietOpt

MARKS = {"works": "ok", "not offered": "-", "refused": "refused", "wrong": "WRONG"}


def smoke(
    command: Annotated[
        list[str],
        typer.Argument(help="The program and its arguments, behind --.", metavar="COMMAND..."),
    ],
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file. Default: a tiny llama model of ours.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for one answer.", min=0.1)] = 30.0,
    start_seconds: Annotated[float, typer.Option(help="Time for the start.", min=0.1)] = 120.0,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Say level by level what a program can be asked, and what it answers wrongly in form.

    It is what `check --engine COMMAND` asks, once each and on a tiny model; whether the numbers are
    right is for `check`. The protocol is in harness/protocol/PROTOCOL.md, examples in C, JavaScript
    and Python in examples/. Exit codes: 0 all that is offered works, 1 something is answered
    wrongly, 3 nothing is offered. Examples:

    \b
      lockstep smoke -- ./my-engine --threads 1
      lockstep smoke --model model.gguf -- python my_engine.py
      lockstep smoke -- tinygrad
    """
    from dataclasses import asdict
    from functools import partial

    from harness.cli.terminal import Terminal
    from harness.inputs import check_file
    from harness.protocol import smoke as work
    from harness.protocol.session import command_of, found_command
    from harness.records import EXACT
    from harness.run import builtin_model

    with Terminal(quiet=quiet, as_json=as_json) as out, TemporaryDirectory() as folder:
        known = command_of(command[0]) if len(command) == 1 else None  # an engine of ours to add
        words = known or found_command(command)
        path = check_file(model) if model else builtin_model("f32", Path(folder))
        steps = []
        name = command[0] if known else ""
        ask = partial(work.smoke, time_limit=seconds, start_limit=start_seconds, name=name)
        for step in ask(words, path, EXACT):
            steps.append(step)
            if not as_json:
                out.line(f"{step.level:<12}{MARKS[step.status]:<8} {step.words}".rstrip())
        offered = [s for s in steps if s.status != "not offered" and s.level != work.START]
        wrong = any(step.status == "wrong" for step in steps)
        if as_json:
            out.json({"command": words, "levels": [asdict(step) for step in steps]})
        elif offered and not wrong:
            out.line(f"go on: lockstep check {model or 'MODEL'} --engine {join([join(command)])}")
    raise typer.Exit(1 if wrong else 0 if offered else 3)
