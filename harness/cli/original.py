"""`lockstep original`: is a GGUF file the model that it was made from?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import JsonOpt, QuietOpt, ReportOpt

SHOWN = 20  # differences of a part


def original(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint of Hugging Face: config.json, *.safetensors, tokenizer.json.",
            metavar="FOLDER",
        ),
    ],
    model: Annotated[Path, typer.Argument(help="A GGUF file.", metavar="MODEL")],
    report: ReportOpt = Path("reports"),
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Compare a GGUF file with the checkpoint that it was made from.

    It compares hyperparameters, tensors and the tokenizer. F32, F16 and BF16 tensors must be equal
    bit for bit, quantised ones as near as their type allows. It runs neither model. Known: llama
    (also Mistral, Mixtral), qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3, gpt2, bert. Exit codes:
    0 the same; 1 something differs; 2 one of them cannot be read; 3 something was not compared.
    Examples:

    \b
      lockstep original Llama-3.2-1B/ llama-3.2-1b-q8_0.gguf
      lockstep original Llama-3.2-1B/ llama-3.2-1b-q8_0.gguf --json
    """
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.runs.original import (
        describe_difference,
        describe_run,
        describe_skips,
        run_original,
    )

    with screen(quiet, as_json) as out:
        command = ["lockstep", *sys.argv[1:]]
        done = run_original(
            folder, model, report, command, lambda text: out.progress(model.name, text)
        )
        found = done.comparison
        if as_json:
            out.json({**describe_run(found), "report": str(done.folder)})
        else:
            for part in found.parts:
                n = len(part.differences)
                out.line(f"{part.part}: {part.compared} compared, {n} differ")
                for each in part.differences[:SHOWN]:
                    out.line(f"  {describe_difference(each)}")
                if n > SHOWN:
                    out.line(f"  {n - SHOWN} more are in the report")
                for text in describe_skips(part.skipped):
                    out.line(f"  not compared: {text}")
            out.remark("results of a run in transformers are not compared")
            out.where(done.folder)
    raise typer.Exit(found.exit_code)
