"""Commands about tokenizers: `fuzz tokens`, `bench tokens` and `golden fetch`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli import bench as bench_cli
from lockstep.harness.cli.fuzz import from_hex
from lockstep.harness.cli.options import HexOpt, JsonOpt, QuietOpt

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.harness.bench.base import BenchRow
    from lockstep.harness.fuzzers.base import FuzzPlan

MEASURED = ("llama-spm", "gpt-2")
VocabOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--vocab",
        help="A GGUF file, a name such as gpt-2 (see golden fetch) or builtin:KIND (repeatable).",
    ),
]


def fuzz_tokens(
    vocab: VocabOpt = None,
    cases: Annotated[int, typer.Option(help="Texts for each vocabulary.", min=1)] = 100_000,
    hexes: HexOpt = None,
    engine: Annotated[
        str,
        typer.Option(
            help="The engine under test, as in check, or reference, llama.cpp, mutant:NAME."
        ),
    ] = "reference",
    oracle: Annotated[
        str, typer.Option(help="The engine to compare with; also tokenizers or sentencepiece.")
    ] = "llama.cpp",
) -> "FuzzPlan":
    """Tokenize texts made from the vocabulary with two engines, and detokenize random ids.

    The texts join, cut and overlap tokens. They contain tied scores, the two sides of merges,
    unknown characters, characters that normalisation changes, broken UTF-8, and texts that resemble
    special tokens. Differences are shrunk. Default of --vocab: the built-in vocabularies, and
    llama.cpp's if they were fetched. Examples:

    \b
      lockstep fuzz tokens --vocab gpt-2 --cases 1000000
      lockstep fuzz tokens --vocab qwen2 --oracle tokenizers
      lockstep fuzz tokens --vocab builtin:t5 --hex e282
    """
    from lockstep.harness.fuzzers.base import FuzzPlan

    return FuzzPlan(
        targets=targets_of(vocab) if vocab else all_targets(),
        engine=engine,
        oracle=oracle,
        cases=cases,
        given=tuple(map(from_hex, hexes or ())),
    )


@bench_cli.app.command("tokens")
def bench_tokens(
    vocab: VocabOpt = None,
    rounds: Annotated[
        int, typer.Option(help="Turns of each engine; the best one counts.", min=1)
    ] = 5,
    size: Annotated[int, typer.Option(help="Bytes in each text.", min=1000)] = 1 << 20,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Measure bytes per second of our tokenizer and of llama.cpp's, on prose and on one endless
    word.

    Each turn has a new text and a freshly opened tokenizer. Default of --vocab: llama-spm and gpt-2
    if they were fetched, else built-in ones. The exit code says nothing about speed: a busy machine
    is slow. Example:

    \b
      lockstep bench tokens --vocab gpt-2 --rounds 3
    """
    from lockstep.harness.bench.base import BenchPlan, bench_named
    from lockstep.harness.cli.terminal import Terminal

    with Terminal(quiet=quiet, as_json=as_json) as out:
        chosen = targets_of(vocab) if vocab else fetched_files(MEASURED)
        bench = bench_named("tokens")
        plan = BenchPlan(targets=chosen, size=size, rounds=rounds)
        rows = list(bench.run(plan, out.progress))
        promises = bench.promises(rows)
        if as_json:
            out.json(bench_cli.figures(bench, rows, promises))
            return
        out.quieten()
        out.out.print(table_of(rows, bench.engines))
        for promise in promises:
            out.line(bench_cli.in_words(promise))
        out.line(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


def fetch(
    sdist: Annotated[
        Path | None, typer.Option(help="The archive, if you have it. Default: pip downloads it.")
    ] = None,
    quiet: QuietOpt = False,
) -> None:
    """Download llama.cpp's 19 vocabularies by pip, once, from the pinned llama-cpp-python sdist.

    The cache is `lockstep` in the user's cache folder, or LOCKSTEP_CACHE. Set LOCKSTEP_VOCABULARIES
    to a folder that already has the files. Example:

    \b
      lockstep golden fetch
    """
    from lockstep.golden.fetch import FILES, NAMES
    from lockstep.golden.fetch import fetch as fetch_files
    from lockstep.harness.cli.terminal import Terminal

    with Terminal(quiet=quiet) as out:
        folder = fetch_files(lambda text: out.progress("golden", text), sdist=sdist)
        out.line(f"{len(NAMES)} vocabularies in {len(FILES)} files: {folder}")


# --- vocabularies -------------------------------------------------------------------------------


def targets_of(given: Sequence[str]) -> tuple[str, ...]:
    """Return a file for each name of a fetched vocabulary. Paths of files and built-in models stay
    as they are. Raises BadInput if a vocabulary is not in the cache."""
    from lockstep.golden.fetch import NAMES, vocabularies, vocabulary
    from lockstep.harness.check.check import BadInput

    targets = []
    for name in dict.fromkeys(given):
        if name not in NAMES or Path(name).is_file():
            targets.append(name)
            continue
        folder = vocabularies()
        if folder is None:
            raise BadInput(f"{name} is not in the cache; `lockstep golden fetch` gets it")
        targets.append(str(vocabulary(folder, name)))
    return tuple(targets)


def fetched_files(names: Sequence[str]) -> tuple[str, ...]:
    """Return the fetched files of these names; none if the cache is empty."""
    from lockstep.golden.fetch import vocabularies, vocabulary

    folder = vocabularies()
    return () if folder is None else tuple(str(vocabulary(folder, name)) for name in names)


def all_targets() -> tuple[str, ...]:
    from lockstep.golden.fetch import NAMES
    from lockstep.harness.fuzzers.base import fuzzer_named

    return (*fuzzer_named("tokens").targets(), *fetched_files(NAMES))


def table_of(rows: "Sequence[BenchRow]", engines: "dict[str, str]") -> "Table":
    from rich.table import Table

    ours, theirs = engines
    table = Table(box=None, pad_edge=False, title="10^6 bytes a second")
    for name in ("text", *engines.values(), "ratio"):
        table.add_column(name, justify="left" if name == "text" else "right")
    for row in rows:
        rates = [row.rates.get((engine, 1)) for engine in engines]
        cells = [bench_cli.format_number(None if rate is None else rate / 1e6) for rate in rates]
        table.add_row(
            row.target, *cells, bench_cli.format_number(row.ratio((ours, 1), (theirs, 1)))
        )
    return table
