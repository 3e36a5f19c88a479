"""`lockstep smoke`: tests which levels of the protocol a program answers, or which questions a
server answers."""

import os
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from lockstep.harness.cli.options import JsonOpt, QuietOpt

# the second limit is for loading libraries and the model, as PROTOCOL.md promises
ANSWER_SECONDS, START_SECONDS = 30.0, 300.0  # a user's model may take minutes to load
NO_PROGRAM = (
    "smoke tries programs and servers. For a Python program, write python before the file. For a "
    "Python class, use `lockstep check MODEL --adapter FILE`; for a folder, `--engine "
    "dump:FOLDER`"
)
MARKS = {"works": "ok", "wrong": "WRONG"}  # other results are shown as they are
NOT_TAKEN = ("unsupported", "refused")


def smoke(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="The program and its arguments after --, or a server's address.",
            metavar="COMMAND...",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="The program or address in one string, as for `check`.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file. Default: our tiny llama model.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            "--seconds",
            help="Seconds for each answer and for the start. Default: 30; start with --model 300.",
            min=0.1,
        ),
    ] = None,
    start_seconds: Annotated[
        float | None, typer.Option(help="Seconds for the start only.", min=0.1)
    ] = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Show, level by level, which questions an engine answers, and which answers are malformed.

    It asks each question of `check --engine COMMAND` once, on a tiny model. It checks only the form
    of the answers; `check` compares their numbers. A level is ok, not offered (no error),
    unsupported, refused, or WRONG. `lockstep protocol` prints the protocol, and an example engine
    with --example. Exit codes: 0 all offered levels work, 1 an answer is malformed or too late, 3
    nothing is offered. Examples:

    \b
      lockstep smoke -- ./my-engine --threads 1
      lockstep smoke --model model.gguf -- python my_engine.py
      lockstep smoke --model model.gguf http://localhost:8080
      lockstep smoke -- tinygrad
    """
    from dataclasses import asdict

    from lockstep.harness.asking.session import Session
    from lockstep.harness.check.inputs import check_file
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.foreign.engines import split_name
    from lockstep.harness.http.served import ServedSession
    from lockstep.harness.http.session import HttpSession, is_address, is_served
    from lockstep.harness.processes.limits import MEMORY, room_for
    from lockstep.harness.protocol import smoke as work
    from lockstep.harness.protocol.session import ProgramSession, command_of, found_command
    from lockstep.harness.records import EXACT
    from lockstep.harness.runs.run import builtin_model

    command = [engine] if engine and engine.strip() else command or []
    if not command:
        raise typer.BadParameter("name a program: lockstep smoke -- COMMAND, or --engine TEXT")
    # in the form that `check --engine` accepts
    text = command[0] if len(command) == 1 else join(command)
    program = text.split(" ")[0] if len(command) == 1 else command[0]
    python = program.endswith(".py") and not os.access(program, os.X_OK)
    if python or program.startswith(("adapter:", "dump:")):
        raise typer.BadParameter(NO_PROGRAM)
    starting = start_seconds or seconds or (START_SECONDS if model else ANSWER_SECONDS)
    with Terminal(quiet=quiet, as_json=as_json) as out, TemporaryDirectory() as folder:
        path = check_file(model) if model else builtin_model("f32", Path(folder))
        session: Session
        if len(command) == 1 and is_address(command[0]):
            words = command
            session = HttpSession(
                *(command[0], path if model else None, EXACT),
                time_limit=seconds or ANSWER_SECONDS,
                start_limit=starting,
            )
        elif len(command) == 1 and is_served(command[0]):
            words = command
            session = ServedSession(
                *(command[0], path, EXACT),
                time_limit=seconds or ANSWER_SECONDS,
                start_limit=starting,
                memory_limit=room_for(path.stat().st_size, MEMORY),
            )
        else:
            known = command_of(command[0]) if len(command) == 1 else None
            words = known or found_command(command)
            session = ProgramSession(
                *(words, path, EXACT),
                time_limit=seconds or ANSWER_SECONDS,
                start_limit=starting,
                memory_limit=room_for(path.stat().st_size, MEMORY),
                name=(split_name(text) or ("",))[0],
            )
        steps = []
        out.remark(f"{session.name} has {starting:g} s to start (--timeout SECONDS)")
        with session:
            for step in work.smoke(session):
                steps.append(step)
                if not as_json:
                    mark = MARKS.get(step.status, step.status)
                    out.line(f"{step.level:<12}{mark:<11} {step.words}".rstrip())
        offered = [s for s in steps if s.status == "works" and s.level != work.START]
        wrong = any(step.status == "wrong" for step in steps)
        if as_json:
            out.json({"command": words, "levels": [asdict(step) for step in steps]})
        elif offered and not wrong:
            asked_about = join([str(model)]) if model else "MODEL"
            out.line(f"next: lockstep check {asked_about} --engine {join([text])}")
        ours = not (model or as_json or isinstance(session, HttpSession))
        if ours and any(
            step.status in NOT_TAKEN or (step.level == work.START and step.status == "wrong")
            for step in steps
        ):
            out.line(
                "smoke used a tiny llama model; to try one that the engine runs, add --model FILE"
            )
    raise typer.Exit(1 if wrong else 0 if offered else 3)
