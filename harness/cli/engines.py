"""`lockstep engine`: engines from public packages, each in its own environment."""

from typing import Annotated

import typer

from lockstep.harness.cli.options import JsonOpt, QuietOpt

app = typer.Typer(
    no_args_is_help=True,
    help="Engines from public packages, for --engine. Lockstep builds them from pinned packages "
    "and keeps them.",
)
NameArg = Annotated[str, typer.Argument(help="A name from lockstep engine list.")]


@app.command()
def add(name: NameArg, quiet: QuietOpt = False) -> None:
    """Build an engine's environment with pip or npm. Example:

    \b
      lockstep engine add tinygrad
      lockstep check model.gguf --engine tinygrad
    """
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.foreign.building import add as build
    from lockstep.harness.foreign.engines import engine_named

    with Terminal(quiet=quiet) as out:
        folder = build(name, lambda text: out.progress(name, text))
        out.line(f"{name} is ready: {folder}")
        if needs := engine_named(name).needs:
            out.remark(f"it needs {needs}")
        takes = engine_named(name).takes
        asked = f"{name}:{takes}" if takes else name
        out.remark(f"next: lockstep smoke -- {asked}; lockstep check MODEL --engine {asked}")


@app.command("list")
def list_(as_json: JsonOpt = False) -> None:
    """List all engines, what each can answer, and why some cannot be built.

    Example:

    \b
      lockstep engine list
    """
    from dataclasses import asdict

    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.foreign.building import added_engines
    from lockstep.harness.foreign.engines import NOT_RUNNING

    with Terminal(quiet=True, as_json=as_json) as out:
        engines = list(added_engines())
        if as_json:
            rows = [asdict(engine) | {"folder": folder} for engine, folder in engines]
            out.json({"engines": rows, "not_running": NOT_RUNNING})
            return
        for engine, folder in engines:
            state = "added" if folder else "-"
            out.line(f"{engine.name:<18}{engine.version:<17}{state:<7}{engine.can}")
        for name, why in NOT_RUNNING.items():
            out.line(f"{name:<18}{'':<17}{'cannot':<7}{why}")


@app.command()
def remove(name: NameArg) -> None:
    """Delete an engine's environment.

    Example:

    \b
      lockstep engine remove transformers
    """
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.foreign.building import remove as remove_environment

    with Terminal(quiet=True) as out:
        out.line(f"removed {remove_environment(name)}")
