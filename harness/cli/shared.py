"""Code that the commands share: the terminal, the models, and the plan for a command's options."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lockstep.engine.choices import choices
from lockstep.harness.cli.options import Preset

if TYPE_CHECKING:  # commands import what they need when they run
    from lockstep.harness.check.check import Plan
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.records import AdapterFile

REFERENCE = "reference"
SECONDS = 300.0  # default time limit of a Plan


def screen(quiet: bool, as_json: bool = False) -> "Terminal":
    """Return a Terminal. The function is not named `terminal`, because importing the module of that
    name would replace it."""
    from lockstep.harness.cli.terminal import Terminal

    return Terminal(quiet=quiet, as_json=as_json)


def usage(message: str) -> Exception:
    from lockstep.harness.check.check import BadInput

    return BadInput(message)


def model_folder() -> Any:
    """Return a folder for built-in models that lives as long as the command."""
    from tempfile import TemporaryDirectory

    return TemporaryDirectory(prefix="lockstep-")


def models_of(model: Path | None, folder: str) -> list[tuple[str, Path]]:
    """Return the name for the report and the path of each model. Built-in models are written on
    demand."""
    from lockstep.harness.cli.acid_models import ACID_PREFIX, acid_model
    from lockstep.harness.runs.run import BUILTIN_PREFIX, builtin_model
    from lockstep.harness.synth.builtin import BUILTIN

    if model is not None and str(model).startswith(ACID_PREFIX):
        return [(str(model), acid_model(str(model), Path(folder)))]
    if model is not None and not str(model).startswith(BUILTIN_PREFIX):
        return [(model.name, model)]
    names = list(BUILTIN) if model is None else [str(model).removeprefix(BUILTIN_PREFIX)]
    for name in names:
        if name not in BUILTIN:
            raise usage(f"no built-in model {name!r} {choices(name, BUILTIN)}")
    return [(f"{BUILTIN_PREFIX}{name}", builtin_model(name, Path(folder))) for name in names]


def engine_of(engine: str, adapter: str | None, node_map: str | None) -> str:
    from lockstep.harness.adapters.parts.users import PREFIX
    from lockstep.harness.dumps.dump import MAP, folder_of

    if node_map is not None:
        if folder_of(engine) is None:
            raise typer.BadParameter("--map is only for dumps: --engine dump:FOLDER")
        return engine + MAP + node_map
    if adapter is None:
        return engine
    if engine != REFERENCE:
        raise typer.BadParameter(
            "--adapter and --engine both name the engine under test: give one of them"
        )
    return PREFIX + adapter


def preset_of(engine: str, settings: Preset | str | None) -> str:
    from lockstep.harness.http.session import preset_for

    return str(settings) if settings else preset_for(engine)


def adapters_of(
    loras: Sequence[str] | None, control_vectors: Sequence[str] | None
) -> "tuple[AdapterFile, ...]":
    """Return the files of --lora and --control-vector, each with its scale."""
    from lockstep.harness.records import CONTROL_VECTOR, LORA

    given = ((LORA, loras or ()), (CONTROL_VECTOR, control_vectors or ()))
    return tuple(adapter_of(kind, text) for kind, texts in given for text in texts)


def adapter_of(kind: str, text: str) -> "AdapterFile":
    """Return the adapter that FILE=SCALE names. Raises BadParameter.

    A path with an equals sign needs a scale after it.
    """
    from lockstep.harness.check.inputs import check_file
    from lockstep.harness.records import AdapterFile

    path, sign, scale = text.rpartition("=")
    if not sign:
        return AdapterFile(kind=kind, path=str(check_file(Path(text))))
    try:
        factor = float(scale)
    except ValueError:
        factor = inf
    if not isfinite(factor):
        raise typer.BadParameter(f"{text!r}: expected FILE=NUMBER, got {scale!r} for the number")
    return AdapterFile(kind=kind, path=str(check_file(Path(path))), scale=factor)


def plan_of(
    name: str,
    path: Path,
    engine: str,
    oracle: str,
    settings: Preset | str | None,
    subject_model: Path | None,
    tokens: int,
    steps: int,
    seed: int,
    suites: list[str] | None,
    *,
    prompt: str | None = None,
    timeout: float = SECONDS,
    adapters: "tuple[AdapterFile, ...]" = (),
) -> "Plan":
    from lockstep.harness.check.check import Plan
    from lockstep.harness.check.settings import settings_named
    from lockstep.harness.cli.acid_models import ACID_PREFIX
    from lockstep.harness.cli.variants import VARIANT_PREFIX
    from lockstep.harness.runs.run import BUILTIN_PREFIX
    from lockstep.harness.suites.decode import PROMPT

    model = [name if name.startswith((BUILTIN_PREFIX, ACID_PREFIX)) else str(path)]
    if name.startswith(VARIANT_PREFIX):
        model = ["--arch", name.removeprefix(VARIANT_PREFIX)]
    preset = preset_of(engine, settings)
    options = [*model, "--engine", engine, "--settings", preset]
    options += ["--oracle", oracle] if oracle != "llama.cpp" else []
    options += ["--subject-model", str(subject_model)] if subject_model else []
    options += ["--tokens", str(tokens), "--steps", str(steps), "--seed", str(seed)]
    options += ["--prompt", prompt] if prompt is not None else []
    options += ["--timeout", f"{timeout:g}"] if timeout != SECONDS else []
    for each in adapters:
        option = "--" + each.kind.replace("_", "-")
        options += [option, f"{each.path}={each.scale:.9g}"]
    return Plan(
        case=name,
        model=path,
        subject_model=subject_model or path,
        engine=engine,
        oracle=oracle,
        settings=replace(settings_named(preset), adapters=adapters),
        suites=tuple(suites or ()),
        n_tokens=tokens,
        n_steps=steps,
        prompt=PROMPT if prompt is None else prompt.encode("utf-8", "surrogateescape"),
        seed=seed,
        time_limit=timeout,
        command=shlex.join(options),
    )
