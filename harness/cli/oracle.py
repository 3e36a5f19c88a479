"""`lockstep oracle`: other versions of an engine, each in its own environment."""

from typing import Annotated

import typer

from lockstep.harness.cli.options import QuietOpt

app = typer.Typer(
    no_args_is_help=True,
    help="Other versions of llama.cpp, for --oracle and --engine. Lockstep builds them from "
    "source and keeps them.",
)
NameArg = Annotated[
    str, typer.Argument(help="A version of llama-cpp-python, such as llama.cpp@0.3.8.")
]


@app.command()
def add(name: NameArg, quiet: QuietOpt = False) -> None:
    """Build a version now. Without this command, `check` and `fuzz` build it when they first need
    it.

    Example:

    \b
      lockstep oracle add llama.cpp@0.3.8
    """
    from lockstep.harness.asking.environments import provide
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.cli.terminal import Terminal

    with Terminal(quiet=quiet) as out:
        folder = provide(name, lambda text: out.progress(name, text))
        if folder is None:
            raise BadInput(f"{name} is not a version; expected one such as llama.cpp@0.3.8")
        out.line(f"{name} is ready: {folder}")


@app.command("list")
def list_() -> None:
    """List the versions that are built for this Python.

    Example:

    \b
      lockstep oracle list
    """
    from lockstep.harness.adapters.llama_cpp.adapter import LlamaCpp
    from lockstep.harness.asking.environments import built_versions
    from lockstep.harness.cli.terminal import Terminal

    with Terminal(quiet=True) as out:
        for name, folder in built_versions(LlamaCpp.name):
            out.line(f"{name}  {folder}")


@app.command()
def remove(name: NameArg) -> None:
    """Delete a version's environment.

    Example:

    \b
      lockstep oracle remove llama.cpp@0.3.8
    """
    from lockstep.harness.asking.environments import remove as remove_environment
    from lockstep.harness.cli.terminal import Terminal

    with Terminal(quiet=True) as out:
        out.line(f"removed {remove_environment(name)}")
