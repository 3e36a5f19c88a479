"""`lockstep original`: compares a GGUF file with the model that it was converted from."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import (
    JsonOpt,
    QuietOpt,
    ReportOpt,
    SeedOpt,
    TimeoutOpt,
    TokensOpt,
)
from lockstep.harness.cli.shared import SECONDS

SHOWN = 20  # differences that are shown for each part


def original(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint of Hugging Face: config.json, *.safetensors, tokenizer.json.",
            metavar="FOLDER",
        ),
    ],
    model: Annotated[Path, typer.Argument(help="A GGUF file.", metavar="MODEL")],
    engine: Annotated[
        str,
        typer.Option(help="The engine that runs MODEL: llama.cpp, llama.cpp@VERSION, reference."),
    ] = "llama.cpp",
    run: Annotated[
        bool,
        typer.Option("--run/--no-run", help="Also run both, or compare only the files."),
    ] = True,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            help="Embeddings of your own pipeline, as JSON Lines: "
            '{"text": "...", "embedding": [...], "prompt": "query"}. The last key is optional.',
            metavar="FILE",
        ),
    ] = None,
    tokens: TokensOpt = 32,
    seed: SeedOpt = 0,
    timeout: TimeoutOpt = SECONDS,
    report: ReportOpt = Path("reports"),
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Compare a GGUF file with the checkpoint that it was made from.

    It compares hyperparameters, tensors and the tokenizer. F32, F16 and BF16 tensors must be equal
    bit for bit, and quantised tensors as near as their type allows. Supported architectures: llama
    (also Mistral, Mixtral), qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3, gpt2, bert.

    After `lockstep engine add originals` it also runs both models on seeded tokens: the checkpoint
    with transformers in float32, and MODEL with llama.cpp. For an F32, F16 or BF16 file, it lists
    the layers and ops that compute something different, in graph order. For a quantised file, it
    shows the KL divergence from the original, and how often both choose the same token. No code of
    the checkpoint is executed. With --embeddings, it compares your own pipeline with
    sentence-transformers: pooling, prompt, truncation, normalisation.

    Exit codes: 0 the same; 1 something differs; 2 a file cannot be read; 3 a part was not compared.
    Exit code 0 is possible although nothing was run: a run is optional if `originals` is missing or
    MODEL is quantised. `lockstep check` does not test a conversion. Examples:

    \b
      lockstep engine add originals
      lockstep original Llama-3.2-1B/ llama-3.2-1b-q8_0.gguf
      lockstep original Llama-3.2-1B/ llama-3.2-1b-q8_0.gguf --json
      lockstep original MiniLM/ minilm-f32.gguf --embeddings mine.jsonl
    """
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.runs.original import (
        conclude,
        describe_part,
        describe_run,
        run_original,
    )
    from lockstep.harness.runs.original_run import RunOptions

    if embeddings is not None and not run:
        raise typer.BadParameter("--embeddings needs a run: leave out --no-run")
    with screen(quiet, as_json) as out:
        command = ["lockstep", *sys.argv[1:]]
        options = RunOptions(engine=engine, n_tokens=tokens, seed=seed, time_limit=timeout)
        done = run_original(
            *(folder, model, report, command),
            lambda text: out.progress(model.name, text),
            options if run else None,
            embeddings,
        )
        found = done.comparison
        if as_json:
            out.json({**describe_run(found), "report": str(done.folder)})
        else:
            earlier = 0  # number of differences in earlier parts
            for part in found.parts:
                for line in describe_part(part, SHOWN, follows=bool(earlier)):
                    out.line(line)
                earlier += len(part.differences)
            out.line(conclude(found))
            out.where(done.folder)
    raise typer.Exit(found.exit_code)
