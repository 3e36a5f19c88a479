"""The command line: arguments in, exit code out. The only package that prints.

Exit codes: 0 conform, 1 divergence, 2 usage, configuration or adapter error, 3 incomplete.
"""

import gc
import os
import signal
import sys
import traceback
from typing import Annotated, Any

import typer

from lockstep.harness.cli import (
    acid,
    answers,
    batch,
    bench,
    bisect,
    check,
    diagnose,
    engines,
    export,
    files,
    findings,
    formats,
    fuzz,
    golden,
    matrix,
    oracle,
    original,
    protocol,
    quick,
    real_models,
    report,
    samplers,
    selftest,
    shadow,
    slices,
    smoke,
    states,
    synth,
    tokens,
    twin,
)
from lockstep.harness.cli.options import JsonOpt
from lockstep.harness.cli.shared import screen
from lockstep.harness.cli.streams import OutputFailed, close_output, open_streams

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def say_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lockstep {version('gguf-lockstep')}")
        raise typer.Exit


@app.callback()
def lockstep(
    version: Annotated[
        bool,
        typer.Option("--version", callback=say_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """Conformance and differential testing for GGUF language-model engines.

    Runs two engines in step, usually a small reference engine and llama.cpp. It reports where, why
    and by how much they diverge. The most common commands:

    \b
      lockstep check MODEL --engine "COMMAND"    is this engine right on this model?
      lockstep bisect MODEL --engine "COMMAND"   which op is wrong?
      lockstep run MODEL --prompt TEXT           what do both write?

    Exit codes: 0 conform, 1 divergence, 2 usage or configuration error, 3 incomplete, 4 (`bisect`)
    the engines diverge and no op is wrong.
    """


app.command("check")(check.check)
app.command("bisect")(bisect.bisect)
app.command("diagnose")(diagnose.diagnose)
app.command("trace")(quick.trace)
app.command("run")(quick.run)
app.command("tokenize")(quick.tokenize)
app.add_typer(golden.app, name="golden")
fuzz.add("quants", fuzz.fuzz_quants)
fuzz.add("gguf", files.fuzz_gguf)
fuzz.add("tokens", tokens.fuzz_tokens)
fuzz.add("batch", batch.fuzz_batch)
fuzz.add("states", states.fuzz_states)
fuzz.add("samplers", samplers.fuzz_samplers)
app.add_typer(fuzz.app, name="fuzz")
app.add_typer(bench.app, name="bench")
app.add_typer(oracle.app, name="oracle")
app.add_typer(engines.app, name="engine")
app.add_typer(acid.app, name="acid")
report.app.command("convert")(formats.convert)
app.add_typer(report.app, name="report")
golden.app.command("fetch")(tokens.fetch)
golden.app.command("ops")(answers.ops)
golden.app.command("export")(export.export)
app.command("synth")(synth.synth)
app.command("shadow")(shadow.shadow)
app.command("selftest")(selftest.selftest)
app.command("smoke")(smoke.smoke)
app.command("protocol")(protocol.protocol)
app.command("matrix")(matrix.matrix)
app.command("fetch")(real_models.fetch)
app.command("finding")(findings.finding)
app.command("slice")(slices.first_layers)
app.command("twin")(twin.twin)
app.command("state")(states.state)
app.command("original")(original.original)


@app.command()
def doctor(as_json: JsonOpt = False) -> None:
    """Show versions, llama.cpp's build, CPU features and missing parts.

    Example:

    \b
      lockstep doctor
    """
    from lockstep.harness.runs.doctor import examine

    with screen(quiet=True, as_json=as_json) as out:
        code = out.examination(examine())
    raise typer.Exit(code)


# click's class of errors in options. Newer versions of typer contain their own copy of click, so
# the class is taken from a subclass that typer exports.
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]


class AskedToEnd(KeyboardInterrupt):
    """Request to end the process. Python would end by SIGINT, with another exit code, if a plain
    KeyboardInterrupt interrupted exec() (used to make a dataclass)."""


def main() -> None:
    """Run a command, and end the process with its exit code. click prints errors about options.
    After a signal to end (kill, a closed terminal) a command cleans up as after Ctrl-C."""
    open_streams()
    from lockstep.engine.errors import EngineError
    from lockstep.harness.processes.allocator import keep_freed_memory
    from lockstep.harness.processes.temporary import one_temporary_folder
    from lockstep.harness.redaction import keep_secret_options

    keep_secret_options(sys.argv[1:])
    came: list[int] = []

    def end(number: int, _: object) -> None:
        if not came:  # a second signal must not stop the clean-up
            came.append(number)
            raise AskedToEnd

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # nohup ignores signals, and they must stay ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    # Read when numpy is loaded. Our products have few rows, and their threads wait for each other
    # on a busy machine: with two threads on two busy processors, a model took nine times the
    # processor time of one thread. The user's own setting wins.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    keep_freed_memory()
    try:
        # from here on, an interrupt is an exception
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with one_temporary_folder():
            code = app(standalone_mode=False) if has_folder() else 2
    except CLICK_ERROR as error:
        error.show()
        code = error.exit_code
    except EngineError as error:  # kernels that cannot be compiled fail at import
        sys.stderr.write(f"lockstep: {error}\n")
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("lockstep: interrupted\n")
        code = 130
    except OutputFailed as error:
        code = error.code
    except Exception as error:  # Python's own exit code for exceptions is that of a divergence
        traceback.print_exception(error)
        sys.stderr.write("lockstep: Lockstep failed, please report this with the command\n")
        code = 2
    # otherwise garbage collection would scan all objects once more, for a third of a second
    gc.freeze()
    sys.exit(close_output(128 + came[0] if came else code))


def has_folder() -> bool:
    """Return True if the working folder exists. Engines start in it, and a user may have deleted
    it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.stderr.write("lockstep: the current folder has been deleted\n")
        return False
    return True
