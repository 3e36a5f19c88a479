"""The commands of `golden`: write the vectors again, verify them, compare them."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli.options import QuietOpt

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.harness.cli.terminal import Terminal

app = typer.Typer(no_args_is_help=True, help="The golden vectors: regenerate, verify, compare.")
OWN_FOLDER = Path("goldens")  # default folder for goldens of a user's models


@app.command()
def regen(
    model: Annotated[
        list[Path] | None, typer.Argument(help="Your own models. Their vectors go to --out.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder for your vectors. Default: goldens. Vectors that ship with Lockstep "
            "are rewritten in place."
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="Keep this node of llama.cpp's graph, such as l_out-3 (repeatable)."),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the shipped vectors. Default: the package's own.", hidden=True
        ),
    ] = None,
    quiet: QuietOpt = False,
) -> None:
    """Ask llama.cpp again, and write the vectors that ship or those of your models.

    With an unchanged oracle no byte changes, on any CPU. Vectors of your models hold only values
    that do not depend on the CPU. In vectors that ship with Lockstep, an old sum stays unchanged if
    it is still within its bound. Example:

    \b
      lockstep golden regen model.gguf --out vectors/
    """
    from lockstep.golden.generate import regenerate
    from lockstep.golden.of_user import is_ours, regenerate_user
    from lockstep.golden.store import DEFAULT_ROOT
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.cli.shared import screen

    with screen(quiet) as screen_:
        say = progress(screen_)
        models, root = model or [], vectors or DEFAULT_ROOT
        if out and not models:
            raise BadInput("--out needs models: name those whose vectors to write")
        shipped = bool(vectors) or (out is None and all(is_ours(path) for path in models))
        if shipped and (node or out):
            raise BadInput("--node and --out are for your own models: omit --vectors")
        if shipped:
            changed = regenerate(root, models, say)
        else:
            root = out or OWN_FOLDER
            changed = regenerate_user(root, models, say, screen_.line, nodes=tuple(node or ()))
        for path in changed:
            screen_.line(f"changed: {path}")
        screen_.line(f"{len(changed)} files changed in {root}")


@app.command()
def verify(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder of vectors. Default: the ones that ship.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Compare this engine with the vectors. This needs no oracle.")
    ] = None,
    ask_oracle: Annotated[
        bool, typer.Option("--oracle", help="Check that llama.cpp still gives these vectors.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this file, such as logits/f32 (repeatable).")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            help="A model to which the vectors belong. Models in the folder are found without this "
            "(repeatable)."
        ),
    ] = None,
    subject_model: Annotated[
        Path | None, typer.Option(help="Run this file instead of the model, whatever its hash.")
    ] = None,
    vectors: Annotated[Path | None, typer.Option(help="The same as FOLDER.", hidden=True)] = None,
    quiet: QuietOpt = False,
) -> None:
    """Check that the vectors are complete and unedited. With --engine or --oracle, also compare the
    engine's or llama.cpp's answers with the vectors.

    If the engine does not answer a question, the report names it and the exit code is 3. Examples:

    \b
      lockstep golden verify
      lockstep golden verify vectors/ --engine "./my-engine"
    """
    from lockstep.golden.manifest import NAME
    from lockstep.golden.replay import replay
    from lockstep.golden.store import DEFAULT_ROOT
    from lockstep.golden.verify import holds
    from lockstep.golden.verify import verify as verify_files
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.exit_codes import exit_code

    with screen(quiet) as out:
        root = folder or vectors or DEFAULT_ROOT
        if not (root / NAME).exists() and next(root.glob("*/*.safetensors"), None) is None:
            raise BadInput(f"{root} holds no golden vectors; `lockstep golden regen` writes them")
        problems = verify_files(root)
        for problem in problems:
            out.line(str(problem))
        if problems:
            raise typer.Exit(1)
        say, models = progress(out), model or ()
        verdicts = []
        if ask_oracle:
            verdicts += list(holds(root, models, say))
        if engine is not None:
            names = tuple(only or ())
            verdicts += replay(root, engine, models, say, only=names, subject_model=subject_model)
        for verdict in verdicts:
            out.verdict(verdict)
        if engine != "replay" and any(verdict.about == "replay" for verdict in verdicts):
            out.line(f"{engine} has no graph for this architecture and replays llama.cpp's")
        counts = Counter(v.status for v in verdicts)
        agreed = counts.pop("agreed", 0)
        others = "".join(f", {n} {status}" for status, n in counts.most_common())
        asked = f"; {agreed} of {len(verdicts)} comparisons agree{others}" if verdicts else ""
        out.line(f"{root}: whole and unedited{asked}")
    raise typer.Exit(exit_code(verdicts) if verdicts else 0)


@app.command()
def diff(a: Path, b: Path) -> None:
    """List the differences between two folders of vectors, or between two files. The exit code is 1
    if there are differences.

    Example:

    \b
      lockstep golden diff vectors/ vectors.new/
    """
    from lockstep.golden.diff import diff as differences
    from lockstep.harness.cli.shared import screen

    with screen(quiet=True) as out:
        found = differences(a, b)
        for difference in found:
            out.line(str(difference))
        out.line(f"{len(found)} differences")
    raise typer.Exit(1 if found else 0)


@app.command()
def models(folder: Path) -> None:
    """Write the seeded models that belong to the vectors, so that any engine can run them.

    Example:

    \b
      lockstep golden models models/
    """
    from lockstep.golden.models import write_models
    from lockstep.harness.cli.shared import screen

    with screen(quiet=True) as out:
        for path in write_models(folder):
            out.line(str(path))


def progress(out: "Terminal") -> "Callable[[str], None]":
    return lambda text: out.progress("golden", text)
