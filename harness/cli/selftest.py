"""`lockstep selftest`: checks that wrong engines are caught and damaged models are located."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli.options import ClusterOpt, Preset, QuietOpt, ReportOpt, SeedOpt
from lockstep.harness.cli.shared import screen

if TYPE_CHECKING:
    from lockstep.harness.damage.trials import DamagePlan

ALL = "all"
# kind of trial -> the options that it accepts
WAYS = {
    "catalogue": {"only", "file"},
    "diagnosis": {"only", "sample", "seed", "file"},
    "black_box": {"only", "sample", "seed", "file"},
    "honest": {"file"},
    "arch": {"faults", "quant", "settings", "seed", "report"},
}
BY_ITSELF = {"list_only", "clean", "seed", "file"}
ALWAYS = {"jobs", "cluster", "quiet", "report"}


def selftest(
    context: typer.Context,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the wrong engines, and run nothing.")
    ] = False,
    clean: Annotated[
        int,
        typer.Option(
            help="Also try this many random cases without a fault, on all graphs of our engine.",
            min=0,
        ),
    ] = 0,
    arch: Annotated[
        str | None,
        typer.Option(help="Damage models of this architecture instead; all: every architecture."),
    ] = None,
    faults: Annotated[
        int,
        typer.Option(help="Number of tensors of each model that get one changed element.", min=1),
    ] = 3,
    quant: Annotated[str, typer.Option(help="Weight type of these models.")] = "F32",
    settings: Annotated[Preset, typer.Option(help="Settings of these runs.")] = Preset.exact,
    seed: SeedOpt = 0,
    catalogue: Annotated[
        bool,
        typer.Option(
            "--catalogue", help="Run all wrong engines, at each level of what an engine can show."
        ),
    ] = False,
    diagnosis: Annotated[
        bool,
        typer.Option("--diagnosis", help="For each wrong engine: does diagnose name its mistake?"),
    ] = False,
    black_box: Annotated[
        bool,
        typer.Option(
            "--black-box",
            help="For each wrong engine, also wrong in one layer only: does bisect --black-box "
            "name layer and part?",
        ),
    ] = False,
    sample: Annotated[
        int | None, typer.Option(help="Number of wrong engines to run, chosen by --seed.", min=1)
    ] = None,
    honest: Annotated[
        int,
        typer.Option(
            help="Number of runs of each honest engine, over ten models and both presets.", min=0
        ),
    ] = 0,
    only: Annotated[str, typer.Option(help="Only this family of engines.")] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--json", help="File of results. Engines with a result in it are not run again."
        ),
    ] = None,
    report: ReportOpt = Path("reports"),
    jobs: Annotated[int, typer.Option("-j", help="Processes.", min=1)] = 1,
    cluster: ClusterOpt = None,
    quiet: QuietOpt = False,
) -> None:
    """Run the wrong engines, and check that each is caught and its mistake located.

    With --arch, change one element of a tensor, and check that this tensor is named. With
    --catalogue, count the wrong engines that are found if they show all tensors, layers, logits,
    likely tokens or only text. Examples:

    \b
      lockstep selftest
      lockstep selftest --clean 10000 --json clean.jsonl -j 2
      lockstep selftest --catalogue --json catalogue.jsonl -j 2
      lockstep selftest --diagnosis --sample 50
      lockstep selftest --black-box --json black-box.jsonl -j 2
      lockstep selftest --honest 100 --json honest.jsonl -j 2
      lockstep selftest --arch qwen3
      lockstep selftest --arch all --faults 3 -j 2
    """
    from lockstep.harness.catalogue.run import run_catalogue, run_honest
    from lockstep.harness.damage.run import run_damage
    from lockstep.harness.diagnosis.selftest import run_diagnosis
    from lockstep.harness.parallel.cluster import executor_for
    from lockstep.harness.selftest.black_box.run import run_black_box
    from lockstep.harness.selftest.selftest import run_selftest

    check_options(context)
    with screen(quiet) as out, executor_for(jobs, cluster) as executor:
        if diagnosis:
            code = run_diagnosis(
                out, only=only, sample=sample, seed=seed, file=file, executor=executor
            )
        elif black_box:
            code = run_black_box(
                out, only=only, sample=sample, seed=seed, file=file, executor=executor
            )
        elif catalogue:
            code = run_catalogue(out, only=only, file=file, executor=executor)
        elif honest:
            code = run_honest(out, honest, file=file, executor=executor)
        elif arch is None:
            code = run_selftest(
                out, list_only=list_only, clean=clean, seed=seed, file=file, executor=executor
            )
        else:
            plans = damage_plans(arch, faults, quant, settings, seed)
            code = run_damage(plans, report, ["lockstep", *sys.argv[1:]], executor, out)
    raise typer.Exit(code)


def check_options(context: typer.Context) -> None:
    """Refuse an option that does not apply to the chosen self-test. Raises BadParameter."""
    source = context.get_parameter_source
    given = {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name and (found := source(param.name)) and found.name == "COMMANDLINE"
    }
    ways = [name for name in WAYS if name in given]
    if len(ways) > 1:
        raise typer.BadParameter(
            f"{' and '.join(given[name] for name in ways)}: give only one of them"
        )
    known = {*ways, *ALWAYS, *(WAYS[ways[0]] if ways else BY_ITSELF)}
    if left := [option for name, option in given.items() if name not in known]:
        beside = f"with {given[ways[0]]}" if ways else "without another option"
        raise typer.BadParameter(f"{', '.join(left)}: no effect {beside}")


def damage_plans(
    arch: str, faults: int, quant: str, settings: Preset, seed: int
) -> "list[DamagePlan]":
    from lockstep.harness.damage.trials import DamagePlan
    from lockstep.harness.records import PRESETS
    from lockstep.harness.synth.any_arch import variant_named, variants

    names = list(variants()) if arch == ALL else [variant_named(arch).name]
    preset = PRESETS[settings.value]
    return [
        DamagePlan(variant=name, quant=quant, settings=preset, seed=seed, faults=faults)
        for name in names
    ]
