"""`lockstep trace`, `run` and `tokenize`: quick commands for a single engine."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.check.inputs import read_text
from lockstep.harness.cli.options import (
    EngineOpt,
    JsonOpt,
    ModelArg,
    PresetOpt,
    QuietOpt,
    SeedOpt,
    TokensOpt,
)
from lockstep.harness.cli.shared import model_folder, models_of, plan_of, preset_of, screen, usage


def trace(
    model: ModelArg,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the tensors.")],
    engine: EngineOpt = "reference",
    settings: PresetOpt = None,
    prompt: Annotated[
        str | None, typer.Option(help="Text to run instead of seeded tokens.")
    ] = None,
    tokens: TokensOpt = 32,
    seed: SeedOpt = 0,
    quiet: QuietOpt = False,
) -> None:
    """Write every named tensor of a run: tensors.safetensors and index.json.

    Examples:

    \b
      lockstep trace model.gguf -o traced/
      lockstep trace model.gguf -o traced/ --engine "./my-engine" --tokens 8
    """
    from lockstep.harness.parallel.children import result_of
    from lockstep.harness.runs.dump import dump_trace
    from lockstep.harness.runs.run import provide_engines

    with screen(quiet) as out, model_folder() as folder:
        name, path = next(iter(models_of(model, folder)))
        plan = plan_of(name, path, engine, engine, settings, None, tokens, 1, seed, ["trace"])
        provide_engines([plan], out.progress)
        work = partial(dump_trace, plan, output, prompt)
        n, who = result_of(work, partial(out.progress, name))
        out.line(f"{n} tensors of {who} in {output}")


def run(
    model: ModelArg,
    prompt: Annotated[str | None, typer.Option(help="The text to continue.")] = None,
    ids: Annotated[
        str | None, typer.Option(help="Token ids as a JSON list, for models without a vocabulary.")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Tokens to generate.", min=1, max=100_000)] = 64,
    engine: Annotated[
        str | None,
        typer.Option(
            help="The engine, as in check. Default: fast, or llama.cpp for an architecture "
            "without a graph in our engine."
        ),
    ] = None,
    settings: PresetOpt = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Generate greedy text with any engine.

    Example:

    \b
      lockstep run model.gguf --prompt "Once upon a time" -n 40
    """
    from lockstep.harness.runs.quick import generate, ids_of

    with screen(quiet, as_json) as out, model_folder() as folder:
        if (prompt is None) is (ids is None):
            raise usage("give --prompt or --ids, and not both")
        name, path = next(iter(models_of(model, folder)))
        given = prompt if prompt is not None else ids_of(str(ids).encode())
        answer = generate(
            path,
            engine,
            preset_of(engine or "", settings),
            given,
            n,
            lambda text: out.progress(name, text),
        )
        if as_json:
            out.json(answer)
        else:
            if answer["why"]:
                out.remark(answer["why"])
            out.data(str(answer["ids"]) if answer["text"] is None else answer["text"])
            for tie in answer["ties"] or ():
                out.remark(
                    f"token {tie['token']} is {tie['chosen']}, and {tie['other']} is as likely: "
                    f"their logits are {tie['apart']:.2g} apart, and the engine's own noise is "
                    f"{tie['noise']:.2g}; another engine may continue differently from here"
                )


def tokenize(
    model: ModelArg,
    text: Annotated[list[str] | None, typer.Option(help="A text (repeatable).")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A file that holds one text of up to 64 MiB; -: standard input."),
    ] = None,
    engine: EngineOpt = "reference",
    decode: Annotated[
        bool, typer.Option("--decode", help="Read JSON lists of ids, and print text.")
    ] = False,
    special: Annotated[
        bool, typer.Option(help="Add special tokens such as BOS if the model says so.")
    ] = True,
    parse_special: Annotated[bool, typer.Option(help="Parse special tokens in the text.")] = False,
) -> None:
    """Tokenize texts with any engine, and print one JSON list of ids for each input. --decode turns
    ids into text.

    Examples:

    \b
      lockstep tokenize model.gguf --text "Hello world"
      lockstep tokenize model.gguf --decode --text '[1, 15043, 3186]'
    """
    from lockstep.harness.runs.quick import decode_ids, encode_texts

    with screen(quiet=True) as out, model_folder() as folder:
        _, path = next(iter(models_of(model, folder)))
        inputs = [t.encode("utf-8", "surrogateescape") for t in text or []]
        if file is not None:
            inputs.append(read_text(file))
        if not inputs:
            raise usage("give --text or --file")
        work = decode_ids if decode else encode_texts
        for line in work(path, engine, inputs, special, parse_special):
            out.data(line)
