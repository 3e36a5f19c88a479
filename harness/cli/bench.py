"""`lockstep bench TARGET`: compares the speed of engines in one run, and checks our promises on
speed."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.harness.cli.options import AdapterOpt, EngineOpt, JsonOpt, QuietOpt
from lockstep.harness.cli.shared import REFERENCE, engine_of, preset_of

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.harness.bench.base import Bench, BenchPlan, BenchRow, Promise

app = typer.Typer(
    no_args_is_help=True,
    help="Compare our speed with llama.cpp and its peers. They take turns in one run.",
)


@app.command()
def quants(
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Only this weight type (repeatable).")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Turns of each engine; the best one counts.", min=1)
    ] = 7,
    seconds: Annotated[float, typer.Option(help="Length of a turn.", min=0.0)] = 0.02,
    size: Annotated[int, typer.Option(help="Weights decoded at a time.", min=256)] = 1 << 18,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Measure weights per second of each decoder: ours, ggml's to_float and gguf-py, with one
    thread and with two.

    The exit code says nothing about speed: a busy machine is slow. Example:

    \b
      lockstep bench quants --type Q4_K --type Q6_K
    """
    from lockstep.harness.bench.base import BenchPlan

    targets = tuple(dict.fromkeys(type_ or ()))
    plan = BenchPlan(targets=targets, size=size, seconds=seconds, rounds=rounds)
    legend = "xN: N threads; ratio: ours to ggml's; x2/x1: ours with two threads to one"
    measure("quants", plan, table_of, legend, as_json=as_json, quiet=quiet)


@app.command()
def shadow(
    model: Annotated[
        list[str] | None, typer.Option(help="A GGUF file or builtin:NAME (repeatable).")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns; the best one counts.", min=1)] = 20,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Measure the cost of watching llama.cpp: time a plain decode, one with an empty callback, and
    a capture.

    A capture copies every node's inputs and result into memory. The time to send and to judge them
    is not counted. The exit code says nothing about speed. Example:

    \b
      lockstep bench shadow
    """
    from lockstep.harness.bench.base import BenchPlan

    plan = BenchPlan(targets=tuple(model or ()), rounds=rounds)
    legend = "callback: with an empty Python callback; copy: copying the captured bytes"
    measure("shadow", plan, times_of, legend, as_json=as_json, quiet=quiet)


@app.command()
def check(
    model: Annotated[
        list[str] | None, typer.Argument(help="A GGUF file or builtin:NAME.", metavar="MODEL...")
    ] = None,
    engine: EngineOpt = REFERENCE,
    adapter: AdapterOpt = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Measure the time of a check, for each suite and each phase.

    The table shows seconds and the processor seconds of Lockstep's own process. The other seconds
    are the time of llama.cpp, of your engine, or of a process that measures the noise of honest
    runs. The exit code says nothing about speed, or about what the check finds. Examples:

    \b
      lockstep bench check model.gguf
      lockstep bench check model.gguf --engine "./my-engine --threads 2"
    """
    from lockstep.harness.bench.base import BenchPlan
    from lockstep.harness.records import PRESETS

    name = engine_of(engine, adapter, None)
    settings = PRESETS[preset_of(name, None)]
    plan = BenchPlan(targets=tuple(model or ()), engine=name, settings=settings)
    legend = "our processor: processor time of this process, on all processors"
    measure("check", plan, seconds_of, legend, as_json=as_json, quiet=quiet)


@app.command()
def run(
    model: Annotated[
        list[str] | None, typer.Argument(help="A GGUF file or builtin:NAME.", metavar="MODEL...")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each engine; the best counts.", min=1)] = 3,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Measure tokens per second of `fast` (our compiled engine) and of llama.cpp, with two threads
    each.

    Both run a prompt of 128 tokens and 32 tokens one by one, under the preset "default". The exit
    code says nothing about speed: a busy machine is slow. Example:

    \b
      lockstep bench run model.gguf
    """
    from lockstep.harness.bench.base import BenchPlan

    plan = BenchPlan(targets=tuple(model or ()), rounds=rounds)
    legend = "ratio: ours to llama.cpp's"
    measure("run", plan, speeds_of, legend, as_json=as_json, quiet=quiet)


def speeds_of(bench: "Bench", rows: "Sequence[BenchRow]") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"{bench.unit} a second")
    (threads,), (ours, theirs) = bench.threads, bench.engines
    for label in ("model, work", *bench.engines.values(), "ratio"):
        table.add_column(label, justify="left" if label == "model, work" else "right")
    for row in rows:
        rates = (row.rates[name, threads] for name in bench.engines)
        ratio = row.ratio((ours, threads), (theirs, threads))
        table.add_row(row.target, *(f"{rate:.1f}" for rate in rates), format_number(ratio))
    return table


def seconds_of(bench: "Bench", rows: "Sequence[BenchRow]") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("model: suite | phase")
    for label in bench.engines.values():
        table.add_column(label, justify="right")
    for row in rows:
        spent = [1 / row.rates[name, 1] for name in bench.engines]
        table.add_row(row.target, *(f"{seconds:.2f}" for seconds in spent))
    return table


def measure(
    name: str,
    plan: "BenchPlan",
    table: "Callable[[Bench, Sequence[BenchRow]], Table]",
    legend: str,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a benchmark, and print its rows and the results of its promises."""
    from lockstep.harness.bench.base import bench_named
    from lockstep.harness.cli.terminal import Terminal

    with Terminal(quiet=quiet, as_json=as_json) as out:
        bench = bench_named(name)
        rows = list(bench.run(plan, out.progress))
        promises = bench.promises(rows)
        if as_json:
            out.json(figures(bench, rows, promises))
            return
        out.quieten()
        out.out.print(table(bench, rows))
        out.line(legend)
        for promise in promises:
            out.line(in_words(promise))
        out.line(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


def times_of(bench: "Bench", rows: "Sequence[BenchRow]") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="milliseconds")
    table.add_column("model, settings, work")
    for label in bench.engines.values():
        table.add_column(label, justify="right")
    for row in rows:
        times = [1000 / row.rates[name, 1] for name in bench.engines]
        table.add_row(row.target, *(f"{time:.3g}" for time in times))
    return table


def figures(bench: "Bench", rows: "Sequence[BenchRow]", promises: "Sequence[Promise]") -> Any:
    return {
        "bench": bench.name,
        "unit": f"{bench.unit} a second",
        "load": list(os.getloadavg()),
        "processors": os.cpu_count(),
        "rows": [
            {"target": row.target}
            | {
                f"{name} x{threads}": float(f"{rate:.4g}")
                for (name, threads), rate in row.rates.items()
            }
            for row in rows
        ],
        "promises": [
            {"text": p.text, "least": p.least, "found": p.found, "kept": p.kept}
            | {"below": list(p.below)}
            for p in promises
        ],
    }


def table_of(bench: "Bench", rows: "Sequence[BenchRow]") -> "Table":
    ours, theirs, *_ = bench.engines
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"10^9 {bench.unit} a second")
    table.add_column("type")
    for threads in bench.threads:
        for name in bench.engines.values():
            table.add_column(f"{name} x{threads}", justify="right")
        table.add_column("ratio", justify="right")
    table.add_column("x2/x1", justify="right")
    for row in rows:
        cells = []
        for threads in bench.threads:
            rates = [row.rates.get((name, threads)) for name in bench.engines]
            cells += [format_number(None if rate is None else rate / 1e9) for rate in rates]
            cells.append(format_number(row.ratio((ours, threads), (theirs, threads))))
        cells.append(format_number(row.ratio((ours, bench.threads[1]), (ours, bench.threads[0]))))
        table.add_row(row.target, *cells)
    return table


def format_number(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def in_words(promise: "Promise") -> str:
    ending = f" ({', '.join(promise.below)} below)" if promise.below else ""
    kept = "reached" if promise.kept else "NOT REACHED"
    return f"{promise.text}: {promise.found:.2f}, promised {promise.least:g}: {kept}{ending}"
