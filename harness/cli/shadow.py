"""`lockstep shadow`: llama.cpp's own graph, op by op, against our ops."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.harness.check.inputs import check_file
from lockstep.harness.cli.formats import FormatOpt, formats_wanted, write_formats
from lockstep.harness.cli.options import (
    ClusterOpt,
    JsonOpt,
    QuietOpt,
    ReportOpt,
    SeedOpt,
    SettingsOpt,
)

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.harness.records import Verdict
    from lockstep.harness.runs.shadow import ShadowPlan
    from lockstep.harness.shadow.batches import Work

ALL = "all"
FAULT_LEGEND = """\
Each kind of fault: found/injected. located: found at its node and nowhere else. smallest: the
smallest injected fault, in bounds (a fault of more than 2 bounds must be found).
Faults that were drawn again: same: no bit changed; small: at most 2 bounds; fatal: llama.cpp
crashed; unjudged: the node is not compared.
"""


def cache_type(name: str) -> str:
    """Return a cache type in our spelling. llama.cpp's own options use lower case, such as
    `q8_0`."""
    from lockstep.harness.records import CACHE_TYPES

    if name.upper() not in CACHE_TYPES:
        known = ", ".join(CACHE_TYPES)
        raise typer.BadParameter(f"{name!r} is not a cache type; llama.cpp has {known}")
    return name.upper()


def shadow(
    models: Annotated[
        list[Path] | None, typer.Argument(help="GGUF files.", metavar="MODEL...")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help="Make a model of this architecture instead; all: every architecture."),
    ] = None,
    quant: Annotated[str, typer.Option(help="Weight type of that model.")] = "F32",
    settings: SettingsOpt = None,
    tokens: Annotated[int, typer.Option(help="Length of the prompt.", min=1, max=4096)] = 16,
    steps: Annotated[
        int,
        typer.Option(
            help="Batches after the prompt: one of three tokens, then single tokens.", min=0
        ),
    ] = 2,
    sequences: Annotated[
        int, typer.Option(help="Number of sequences in every batch.", min=1, max=8)
    ] = 1,
    ubatch: Annotated[
        int | None,
        typer.Option(help="Maximum tokens in one ubatch of llama.cpp.", min=1),
    ] = None,
    cache_type_k: Annotated[
        str | None,
        typer.Option(
            help="Type of cached keys, such as Q8_0. Default: the preset's.",
            parser=cache_type,
            metavar="TYPE",
        ),
    ] = None,
    cache_type_v: Annotated[
        str | None,
        typer.Option(
            help="Type of cached values. A quantised type needs flash attention.",
            parser=cache_type,
            metavar="TYPE",
        ),
    ] = None,
    seed: SeedOpt = 0,
    faults: Annotated[
        int,
        typer.Option(
            help="Inject this many faults into llama.cpp's tensors instead. All must be found.",
            min=0,
        ),
    ] = 0,
    start: Annotated[int, typer.Option(help="Number of the first fault.", min=0)] = 0,
    report: ReportOpt = Path("reports"),
    formats: FormatOpt = None,
    as_json: JsonOpt = False,
    jobs: Annotated[int, typer.Option("-j", help="Models to judge in parallel.", min=1)] = 1,
    cluster: ClusterOpt = None,
    quiet: QuietOpt = False,
) -> None:
    """Recompute every op of llama.cpp's own graph from llama.cpp's own inputs.

    Each node has a bound that is derived from its roundings. Ops that Lockstep does not implement
    are reported as not compared, with their names and counts. Examples:

    \b
      lockstep shadow model.gguf
      lockstep shadow models/*.gguf --quiet
      lockstep shadow --arch mamba2
      lockstep shadow --arch all -j 2
      lockstep shadow --arch all --faults 200
    """
    from lockstep.harness.check.settings import settings_named
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.parallel.cluster import executor_for
    from lockstep.harness.records import EXACT
    from lockstep.harness.runs.run import Listener
    from lockstep.harness.runs.shadow import run_shadow, settings_for, with_trials
    from lockstep.harness.shadow.batches import Work

    with screen(quiet, as_json) as out, executor_for(jobs, cluster) as executor:
        wanted = formats_wanted(formats)
        work = Work(tokens=tokens, batches=steps, sequences=sequences)
        fitted = settings_for(
            work,
            settings_named(settings or EXACT.name),
            ubatch=ubatch,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
        )
        changed = {
            "--quant": quant,
            "--ubatch": ubatch,
            "--cache-type-k": cache_type_k,
            "--cache-type-v": cache_type_v,
        }
        plans = plans_of(
            models or [],
            arch,
            quant=quant,
            settings=fitted,
            work=work,
            seed=seed,
            options=options_of(settings or EXACT.name, work, seed, changed),
        )
        if faults:
            plans = with_trials(plans, range(start, start + faults))
        listener = Listener(progress=out.progress, verdict=out.verdict, opened=out.open_report)
        result = run_shadow(plans, report, ["lockstep", *sys.argv[1:]], executor, listener)
        if not as_json:
            out.quieten()
            out.out.print((fault_table if faults else op_table)(result.verdicts))
            for line in [FAULT_LEGEND] if faults else notes(result.verdicts):
                out.line(line)
        out.summary(result)
        write_formats(wanted, result.folder, out)
    raise typer.Exit(result.code)


def options_of(
    settings: str, work: "Work", seed: int, changed: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the options that repeat the run, without options that have their default value."""
    options = {"--settings": settings, "--tokens": work.tokens, "--seed": seed}
    usual = {"--steps": 2, "--sequences": 1, "--quant": "F32"}
    given = {"--steps": work.batches, "--sequences": work.sequences, **changed}
    options |= {k: v for k, v in given.items() if v != usual.get(k)}
    return tuple(str(word) for pair in options.items() for word in pair)


def plans_of(models: Sequence[Path], arch: str | None, **same: Any) -> list["ShadowPlan"]:
    """Return a plan for each file or variant. All plans share the other settings."""
    from lockstep.harness.cli.shared import usage
    from lockstep.harness.runs.shadow import ShadowPlan, every_variant
    from lockstep.harness.synth.any_arch import variant_named

    if bool(models) == (arch is not None):
        raise usage("give a MODEL or --arch, and not both")
    if models:
        cases = zip(cases_of(models), models, strict=True)
        return [ShadowPlan(case=case, model=check_file(model), **same) for case, model in cases]
    names = every_variant() if arch == ALL else (variant_named(str(arch)).name,)
    return [ShadowPlan(case=f"synth:{name}", model=None, variant=name, **same) for name in names]


def cases_of(models: Sequence[Path]) -> list[str]:
    """Return file names, or whole paths if two files share a name."""
    names = [model.name for model in models]
    return names if len(set(names)) == len(names) else [str(model) for model in models]


def by_op(verdicts: Sequence["Verdict"]) -> dict[str, list["Verdict"]]:
    rows: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if "op" in verdict.detail:
            rows.setdefault(verdict.detail["op"], []).append(verdict)
    return rows


def notes(verdicts: Sequence["Verdict"]) -> list[str]:
    """Return a note for each kind of op whose errors, over all models, are far below their
    bound."""
    from lockstep.harness.shadow.notes import note_of

    found = []
    for op, same in by_op(verdicts).items():
        reach, worst = (max(v.detail[name] for v in same) for name in ("reach", "worst_share"))
        found.append(note_of(op, total(same, "free"), reach, worst))
    return [f"note: {text}" for text in found if text]


def op_table(verdicts: Sequence["Verdict"]) -> "Table":
    """Return a row for each kind of op, over all models."""
    from rich.table import Table

    rows = by_op(verdicts)
    table = Table(box=None, pad_edge=False)
    for name in ("op", "models", "nodes", "compared", "exact", "worst / bound", "over bound"):
        table.add_column(name, justify="left" if name == "op" else "right")
    for op, same in sorted(rows.items(), key=lambda row: -total(row[1], "nodes")):
        worst = max(v.detail["worst_share"] for v in same)
        wrong = total(same, "violations")
        table.add_row(
            op,
            str(len({v.case for v in same})),
            *(str(total(same, name)) for name in ("nodes", "compared", "exact")),
            f"{worst:.0%}",
            str(wrong or ""),
        )
    return table


def total(same: Sequence["Verdict"], name: str) -> int:
    """Return the total of one count over all models. A model has several verdicts for an op, one
    per reason, which all repeat the same counts."""
    return sum({v.case: int(v.detail[name]) for v in same}.values())


def fault_table(verdicts: Sequence["Verdict"]) -> "Table":
    """Return a row for each family of ops: found and injected faults, and faults that were drawn
    again."""
    from typing import get_args

    from rich.table import Table

    from lockstep.harness.shadow.fault_verdicts import count_faults
    from lockstep.harness.shadow.faults import KINDS, Again

    reasons = get_args(Again)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("ops", *KINDS, "located", "smallest", *reasons):
        table.add_column(name, justify="left" if name == "ops" else "right")
    for family, count in count_faults(verdicts).items():
        kinds = [f"{count.found[kind]}/{count.injected[kind]}" for kind in KINDS]
        located = f"{count.located}/{count.injected.total()}"
        smallest = f"{count.smallest:.2g}" if count.injected else ""
        again = [str(count.again[why] or "") for why in reasons]
        table.add_row(family, *kinds, located, smallest, *again)
    return table
