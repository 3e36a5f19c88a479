"""`lockstep check`: runs every suite that applies, on one model or many."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli import diagnosing
from lockstep.harness.cli.acid_checks import check_opens_files, files_to_check
from lockstep.harness.cli.formats import FormatOpt, formats_wanted, write_formats
from lockstep.harness.cli.options import (
    AdapterOpt,
    ArchOpt,
    ClusterOpt,
    ControlVectorOpt,
    EngineOpt,
    JsonOpt,
    LoraOpt,
    MapOpt,
    OptModelArg,
    OracleOpt,
    QuietOpt,
    ReportOpt,
    SeedOpt,
    SettingsOpt,
    SubjectOpt,
    TimeoutOpt,
    TokensOpt,
)
from lockstep.harness.cli.shared import (
    REFERENCE,
    SECONDS,
    adapters_of,
    engine_of,
    model_folder,
    plan_of,
    screen,
)
from lockstep.harness.runs.hints import what_is_quicker

STEPS_OF_VARIANTS = 16


def check(
    model: OptModelArg = None,
    engine: EngineOpt = REFERENCE,
    adapter: AdapterOpt = None,
    node_map: MapOpt = None,
    oracle: OracleOpt = "llama.cpp",
    settings: SettingsOpt = None,
    suite: Annotated[list[str] | None, typer.Option(help="Only this suite (repeatable).")] = None,
    arch: ArchOpt = None,
    subject_model: SubjectOpt = None,
    lora: LoraOpt = None,
    control_vector: ControlVectorOpt = None,
    tokens: TokensOpt = 32,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Tokens to generate. Models above 256 MB generate some of them with only "
            "the first layer. Default: 64, or 16 with --arch.",
            min=1,
            max=4096,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help='Text for the engines to continue. Default: "Once upon a time".'),
    ] = None,
    seed: SeedOpt = 0,
    known: Annotated[
        Path | None,
        typer.Option(
            help="Excuse the divergences in this file. A listed divergence that no longer occurs "
            "is an error."
        ),
    ] = None,
    write_known: Annotated[
        Path | None,
        typer.Option(
            help="Write a list of the divergences of this run for --known. Reasons already in the "
            "file stay."
        ),
    ] = None,
    timeout: TimeoutOpt = SECONDS,
    report: ReportOpt = Path("reports"),
    formats: FormatOpt = None,
    as_json: JsonOpt = False,
    jobs: Annotated[
        int, typer.Option("-j", help="Number of models to check in parallel.", min=1)
    ] = 1,
    cluster: ClusterOpt = None,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="If something diverges, try known mistakes.")
    ] = False,
    quiet: QuietOpt = False,
) -> None:
    """Run every suite that applies to the model and the engine.

    The suites run in this order: metadata, tokens, dequant, logits, long-context, logprobs,
    embeddings, states, guidance, decode, text, black-box, acid, trace, products, shadow. logprobs
    and text are for engines that show no logits. states is for engines that save sessions, and
    guidance is for engines with classifier-free guidance. black-box is for engines that show no
    tensors. long-context is for models with parts that only longer texts use (attention windows,
    long RoPE factors). acid is for models of `lockstep acid`.

    Without MODEL, it checks the built-in seeded models. With --suite acid, it checks the acid
    models of every type. To check a single acid model, write acid:ARCH:TYPE as MODEL. Examples:

    \b
      lockstep check
      lockstep check model.gguf --settings default
      lockstep check model.gguf --engine mutant:rope-half-split --suite trace
      lockstep check --suite acid --engine ./my-engine
      lockstep check --arch qwen3
      lockstep check --arch all -j 2 --quiet
      lockstep check model.gguf --engine http://localhost:8080
      lockstep check model.gguf --adapter my_engine.py
      lockstep check model.gguf --engine dump:FOLDER --map transformers
      lockstep check model.gguf --engine ./my-engine --write-known known.json
      lockstep check model.gguf --engine ./my-engine --known known.json
      lockstep check model.gguf --engine ./slow-engine --suite logits --tokens 2
      lockstep check model.gguf --lora adapter.gguf=0.5 --control-vector calm.gguf
      lockstep check model.gguf --engine ./my-engine --format junit=junit.xml
    """
    from lockstep.harness.asking.template import keep_template

    engine = engine_of(engine, adapter, node_map)
    if arch is not None and (model is not None or subject_model is not None):
        raise typer.BadParameter("--arch makes the model: omit MODEL and --subject-model")
    n = steps or (64 if arch is None else STEPS_OF_VARIANTS)
    # the template loads llama.cpp meanwhile
    with keep_template(), screen(quiet, as_json) as out, model_folder() as folder:
        from lockstep.harness.parallel.cluster import executor_for
        from lockstep.harness.parallel.works import Forks
        from lockstep.harness.runs.known_failures import KnownFailures, listed_in, read_known
        from lockstep.harness.runs.known_failures import write_known as write_failures
        from lockstep.harness.runs.run import Listener, run_plans

        wanted = formats_wanted(formats)
        adapters = adapters_of(lora, control_vector)
        written = listed_in(write_known) if write_known else KnownFailures()
        if text := what_is_quicker(model):
            out.remark(text)
        out.progress("models", "making them")
        files = files_to_check(model, arch, suite, folder, seed)
        if any(optional for *_, optional in files):
            check_opens_files(engine, subject_model)
        plans = [
            replace(
                plan_of(
                    *(name, path, engine, oracle, settings, subject_model, tokens, n, seed, suites),
                    prompt=prompt,
                    timeout=timeout,
                    adapters=adapters,
                ),
                optional=optional,
            )
            for name, path, suites, optional in files
        ]
        listener = Listener(
            progress=out.progress, verdict=out.verdict, remark=out.remark, opened=out.open_report
        )
        listed = read_known(known) if known else KnownFailures()
        command = ["lockstep", *sys.argv[1:]]
        with executor_for(1, cluster) as executor:
            executor = executor or Forks(jobs)
            result = run_plans(plans, report, command, executor, listener, listed)
        diagnosed = diagnosing.diagnose_run(plans, result, out) if diagnose else ()
        out.summary(result, diagnosed, "" if diagnose else result.next_step)
        write_formats(wanted, result.folder, out)
        if write_known:
            n = write_failures(write_known, result.verdicts, written | listed)
            out.remark(
                f"{n} divergences written to {write_known}: add the reasons, and pass the file as "
                "--known"
            )
    raise typer.Exit(result.code)
