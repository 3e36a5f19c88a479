"""`lockstep matrix`: many engines on the same cases."""

import shlex
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli.options import (
    JsonOpt,
    OracleOpt,
    Preset,
    QuietOpt,
    ReportOpt,
    SeedOpt,
    TimeoutOpt,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lockstep.harness.runs.matrix import MatrixRow

# one model for each thing that engines often get wrong: plain, grouped heads, quantised, tied,
# experts
BUILTINS = ("f32", "bf16", "q8_0", "q4_0", "moe")
ARCHITECTURES = ("qwen3", "gemma3", "gpt2")
MOST = 10_000  # columns of the terminal, so that tables take the width that they need
INTERRUPTED = "the run was interrupted before"


def matrix(
    engines: Annotated[
        list[str],
        typer.Argument(
            help="Engines, as in --engine of check, each in quotes.", metavar="ENGINE..."
        ),
    ],
    model: Annotated[
        list[Path] | None,
        typer.Option(help="An additional GGUF file or builtin:NAME (repeatable)."),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Only the files of --model.")] = False,
    oracle: OracleOpt = "llama.cpp",
    settings: Annotated[Preset | None, typer.Option(help="The preset, as in check.")] = None,
    tokens: Annotated[int, typer.Option(help="Length of the prompt.", min=1, max=4096)] = 16,
    steps: Annotated[int, typer.Option(help="Tokens to generate.", min=1, max=4096)] = 16,
    seed: SeedOpt = 0,
    timeout: TimeoutOpt = 300.0,
    report: ReportOpt = Path("reports"),
    html: Annotated[bool, typer.Option("--html", help="Also write matrix.html.")] = False,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a static site: an index, a page for each engine and each finding. "
            "An interrupted run continues where it stopped.",
        ),
    ] = None,
    as_json: JsonOpt = False,
    jobs: Annotated[
        int, typer.Option("-j", help="Number of models to check in parallel.", min=1)
    ] = 1,
    quiet: QuietOpt = False,
) -> None:
    """Show in one table, or as JSON, what each engine can answer and where it diverges.

    All engines run the same cases: five built-in llama models (plain, bf16, Q8_0, Q4_0, experts),
    one each of qwen3, gemma3 and gpt2, and the files of --model. Each cell counts the cases that
    agree, out of the cases that the engine can answer. Each engine gets its own report. The exit
    code is the worst of all engines. Examples:

    \b
      lockstep matrix reference llama.cpp@0.3.8 ./my-engine
      lockstep matrix "./my-engine --threads 1" --model model.gguf --only
      lockstep matrix reference ./my-engine --html
      lockstep matrix reference ./my-engine --site public
    """
    from lockstep.harness.check.check import preflight
    from lockstep.harness.cli.shared import plan_of, screen
    from lockstep.harness.runs.matrix import (
        MatrixRow,
        exit_code_of_matrix,
        row_of,
        run_matrix,
        write_matrix,
    )
    from lockstep.harness.runs.site import ask_rest, write_site

    if only and not model:
        raise typer.BadParameter("--only needs at least one --model")
    with screen(quiet, as_json) as out, TemporaryDirectory(prefix="lockstep-") as folder:
        out.progress("models", "making them")
        cases = named_apart(model or [], folder)
        cases = cases if only else [*dict.fromkeys([*cases_made(folder, seed), *cases])]
        plans = {
            engine: [
                plan_of(
                    *(case, path, engine, oracle, settings, None, tokens, steps, seed, None),
                    timeout=timeout,
                )
                for case, path in cases
            ]
            for engine in dict.fromkeys(engines)
        }
        command = ["lockstep", *sys.argv[1:]]
        same = next(iter(plans.values()))
        for plan in same:
            preflight(plan)  # a file that cannot be read is bad input, and no verdict on an engine
        rows: list[MatrixRow] = []
        ask = partial(run_matrix, reports=report, command=command, jobs=jobs, progress=out.progress)
        try:
            for row in ask_rest(site, plans, ask):
                rows.append(row)
        except KeyboardInterrupt:  # results so far are kept, and the remaining engines are listed
            asked = {row.engine for row in rows}
            left = [MatrixRow(engine=e, error=INTERRUPTED) for e in plans if e not in asked]
            if rows:
                every = [*rows, *left]
                paths = write_matrix(every, same, report, shlex.join(command), html=html)
                out.remark(f"written: {paths[0]}, without {', '.join(e.engine for e in left)}")
            raise
        rows.sort(key=lambda row: [*plans].index(row.engine))
        paths = write_matrix(rows, same, report, shlex.join(command), html=html)
        if site:
            paths.append(write_site(site, rows, same, shlex.join(command)))
        if as_json:
            out.json([row_of(row) for row in rows])
        else:
            out.quieten()
            shown_matrix(rows, out.out)
            for row in rows:
                if row.error:
                    out.line(f"\n{row.engine} was not asked: {row.error}")
            others = ", ".join(p.name if p.parent == paths[0].parent else str(p) for p in paths[1:])
            out.line(f"\nwritten: {paths[0]}, {others}")
    raise typer.Exit(exit_code_of_matrix(rows))


def named_apart(models: list[Path], folder: str) -> list[tuple[str, Path]]:
    """Return each file once, with its name, or with its path if two files share a name, because
    verdicts need unique names. `folder` is for built-in models."""
    from lockstep.harness.cli.shared import models_of

    found = [case for model in models for case in models_of(model, folder)]
    cases = list({path.resolve(): (name, path) for name, path in found}.values())
    names = [name for name, _ in cases]
    return [(n if names.count(n) == 1 else str(path), path) for n, path in cases]


def cases_made(folder: str, seed: int) -> list[tuple[str, Path]]:
    from lockstep.harness.cli.variants import variant_files
    from lockstep.harness.runs.run import BUILTIN_PREFIX, builtin_model

    made = [(f"{BUILTIN_PREFIX}{name}", builtin_model(name, Path(folder))) for name in BUILTINS]
    return [*made, *(case for arch in ARCHITECTURES for case in variant_files(arch, folder, seed))]


def shown_matrix(rows: "list[MatrixRow]", console: "Console") -> None:
    """Print a table if it fits into the terminal's width; else print a block for each engine."""
    from rich.measure import Measurement

    from lockstep.harness.runs.matrix import (
        NOT_COMPARED,
        NOTHING,
        columns,
        is_compared,
        names_of,
        texts_of,
    )

    table = table_of(rows)
    if Measurement.get(console, console.options.update(width=MOST), table).maximum <= console.width:
        console.print(table)
        return
    suites = columns(rows)
    wide = max(map(len, suites), default=0)
    for name, row in zip(names_of(rows), rows, strict=True):
        console.print(name)
        for suite, text in zip(suites, texts_of(row, suites), strict=True):
            if text != NOTHING:
                console.print(f"  {suite:<{wide}}  {text}")
        if not row.error and not is_compared(row):
            console.print(f"  {NOT_COMPARED}")


def table_of(rows: "list[MatrixRow]") -> "Table":
    from rich.table import Table

    from lockstep.harness.runs.matrix import columns, names_of, texts_of

    suites = columns(rows)
    table = Table(box=None, pad_edge=False)
    for name in ("engine", *suites):
        table.add_column(name)
    for name, row in zip(names_of(rows), rows, strict=True):
        table.add_row(name, *texts_of(row, suites))
    return table
