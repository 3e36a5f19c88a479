"""`lockstep diagnose`: finds the known mistake that reproduces an engine's answers."""

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli import diagnosing, diagnosis
from lockstep.harness.cli.formats import FormatOpt, formats_wanted, write_formats
from lockstep.harness.cli.options import (
    AdapterOpt,
    EngineOpt,
    JsonOpt,
    ModelArg,
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
    engine_of,
    model_folder,
    models_of,
    plan_of,
    screen,
)
from lockstep.harness.runs.hints import LARGE_FOR_MANY_RUNS, what_is_quicker


def diagnose(
    model: ModelArg,
    engine: EngineOpt = REFERENCE,
    adapter: AdapterOpt = None,
    settings: SettingsOpt = None,
    subject_model: SubjectOpt = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt, as in check.")] = None,
    tokens: TokensOpt = 32,
    steps: Annotated[int, typer.Option(help="Tokens of text to generate.", min=1, max=4096)] = 64,
    seed: SeedOpt = 0,
    timeout: TimeoutOpt = SECONDS,
    report: ReportOpt = Path("reports"),
    formats: FormatOpt = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Find the known mistake that reproduces the answers of a wrong engine.

    `diagnose` asks the engine and the right engine everything that the engine can answer: logits,
    likely tokens, greedy tokens, text, ids. If they differ, it asks four hundred engines with one
    known mistake each. It names a mistake if the engine with this mistake reproduces all answers
    within the noise of honest runs. Exit code: 0 all answers agree with the right engine, 1 some
    differ, 3 incomplete. Examples:

    \b
      lockstep diagnose model.gguf --engine ./my-engine
      lockstep diagnose model.gguf --engine http://localhost:8080
      lockstep diagnose builtin:f32 --engine mutant:rope-half-split
    """
    from lockstep.harness.asking.template import keep_template

    engine, began = engine_of(engine, adapter, None), time.perf_counter()
    with keep_template(), screen(quiet, as_json) as out, model_folder() as folder:
        from lockstep.harness.check.plan_report import PlanReport, write_plan_report
        from lockstep.harness.runs.run import provide_engines, run_folder

        wanted = formats_wanted(formats)
        if text := what_is_quicker(model, LARGE_FOR_MANY_RUNS):
            out.remark(text)
        name, path = next(iter(models_of(model, folder)))
        plan = plan_of(
            *(name, path, engine, "llama.cpp", settings, subject_model, tokens, steps, seed, None),
            prompt=prompt,
            timeout=timeout,
        )
        provide_engines([plan], out.progress)
        diagnosed = diagnosing.run_diagnosis(plan, out)
        code, command = out.diagnosis(plan, diagnosed), shlex.join(["lockstep", *sys.argv[1:]])
        folder_of_run = run_folder(report, "diagnose")
        found = PlanReport(
            plan=plan,
            engines=diagnosed.engines,
            command=command,
            exit_code=code,
            verdicts=diagnosis.verdicts_of(plan, diagnosed, command),
            started=began,
        )
        write_plan_report(folder_of_run, found)
        write_formats(wanted, folder_of_run, out)
        out.where(folder_of_run)
    raise typer.Exit(code)
