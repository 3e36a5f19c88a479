"""Commands about state files (saved sessions) of llama.cpp: `state`, and `fuzz states`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.harness.cli.options import JsonOpt

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.harness.fuzzers.base import FuzzPlan


def state(
    file: Annotated[Path, typer.Argument(help="A state file of llama.cpp.", metavar="FILE")],
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file. List what does not fit this model.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Show what a saved session of llama.cpp holds, and what does not fit a model.

    It reads files of whole contexts (llama-cli --prompt-cache, llama_state_save_file) and of single
    sequences (/slots, llama_state_seq_save_file), as llama-cpp-python 0.3.36 writes them. Neither
    kind of file names its model, so this command cannot detect a model with other weights of the
    same sizes. Exit codes: 0 the file fits, or no model was given; 1 it does not fit the model; 2
    it cannot be read. Examples:

    \b
      lockstep state session.bin
      lockstep state session.bin --model model.gguf --json
    """
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.runs.state_file import examine_state

    with Terminal(quiet=False, as_json=as_json) as out:
        found = examine_state(file, model)
        if as_json:
            out.json(found)
        else:
            name = found["architecture"] or "an unnamed model"
            out.line(
                f"{file}: {found['kind']} file, version {found['version']}, of {name}: "
                f"{found['tokens']:,} tokens, {found['bytes']:,} bytes"
            )
            if found["parts"]:
                out.out.print(table_of_parts(found["parts"]))
            for each in found["misfits"]:
                where = f" of {each['where']}" if each["where"] else ""
                out.line(f"{each['kind']}{where}: expected {each['expected']}, got {each['got']}")
            if model is not None and not found["compared"]:
                out.remark("sizes not compared: Lockstep has no graph of this architecture")
            if found["fits"]:
                out.line(f"fits {model}")
    raise typer.Exit(1 if found["fits"] is False else 0)


def table_of_parts(parts: Iterable[Mapping[str, Any]]) -> "Table":
    """Return a table with a row for the keys, the values or the states of each stream."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("part", "cells", "positions", "sequences", "rows", "type", "width"):
        table.add_column(name, no_wrap=True)
    for name in ("layers", "bytes"):
        table.add_column(name, justify="right")
    for part in parts:
        span = "-".join(map(str, part["positions"])) if part["positions"] else ""
        owners = " ".join(map(str, part["sequences"][:8]))
        name = f"{part['kind']} {part['stream']}" if part["stream"] else part["kind"]
        first = (name, f"{part['cells']:,}", span, owners)
        for row in part["rows"] or [None]:
            if row is None:
                table.add_row(*first)
                continue
            name = f"{row['name']} transposed" if row["transposed"] else row["name"]
            sizes = (" ".join(row["types"]), " ".join(map(str, row["widths"])))
            table.add_row(*first, name, *sizes, str(row["layers"]), f"{row['bytes']:,}")
    return table


def fuzz_states(
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="Only these files: context-MEMORY (whole) or sequence-MEMORY, with a memory of "
            "attention, window, recurrent, hybrid (repeatable).",
        ),
    ] = None,
    cases: Annotated[int, typer.Option(help="Files of each type.", min=1)] = 1280,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Test only this damaged file, given as JSON (repeatable)."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="The reader under test: reference, llama.cpp@VERSION.")
    ] = "reference",
) -> "FuzzPlan":
    """Read state files that llama.cpp wrote, and damaged ones, with our reader and llama.cpp.

    Damaged files are cut, have flipped bits, or come from another model, version or cache. Our
    reader must refuse every file that llama.cpp refuses. It is a finding if llama.cpp aborts, if it
    keeps cells of a file that it refuses, or if it accepts a file that changes the next logits.
    llama.cpp reads the files in child processes. Examples:

    \b
      lockstep fuzz states
      lockstep fuzz states --type sequence-window --cases 20000 --seed 7
      lockstep fuzz states --type context-attention --case '{"base":"one","edits":[["cut",90]]}'
    """
    from lockstep.harness.fuzzers.base import FuzzPlan

    return FuzzPlan(
        targets=tuple(dict.fromkeys(type_ or ())),
        engine=engine,
        cases=cases,
        given=tuple(text.encode() for text in case or ()),
    )
