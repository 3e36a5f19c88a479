"""`lockstep bisect`: finds the first layer, the op and the elements that diverge."""

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli import blackbox, diagnosing, diagnosis
from lockstep.harness.cli.formats import FormatOpt, formats_wanted, write_formats
from lockstep.harness.cli.options import (
    AdapterOpt,
    ControlVectorOpt,
    EngineOpt,
    JsonOpt,
    LoraOpt,
    MapOpt,
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
    models_of,
    plan_of,
    screen,
)
from lockstep.harness.runs.hints import what_is_quicker, without_tensors

if TYPE_CHECKING:
    from lockstep.harness.check.check import Plan
    from lockstep.harness.context.suite import NoAnswer


def bisect(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A GGUF file, or builtin:NAME. Default: a built-in model on which the engine is "
            "known to be wrong, or the first."
        ),
    ] = None,
    engine: EngineOpt = REFERENCE,
    adapter: AdapterOpt = None,
    node_map: MapOpt = None,
    oracle: OracleOpt = "llama.cpp",
    settings: SettingsOpt = None,
    subject_model: SubjectOpt = None,
    lora: LoraOpt = None,
    control_vector: ControlVectorOpt = None,
    tokens: TokensOpt = 32,
    seed: SeedOpt = 0,
    timeout: TimeoutOpt = SECONDS,
    black_box: Annotated[
        bool,
        typer.Option(
            "--black-box",
            help="For an engine that shows logits, likely tokens or greedy tokens, and no "
            "tensors. Lockstep gives it models made from MODEL: single layers, layers with "
            "neutral parts, and models whose logits are decoded weights.",
        ),
    ] = False,
    report: ReportOpt = Path("reports"),
    formats: FormatOpt = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Find where two engines diverge: the first layer, the op and the elements.

    Lockstep recomputes each op from the engine's own inputs. This separates ops that introduce an
    error from ops that only pass it on. Then it replaces the results of the wrong ops by the
    oracle's tensors. If the outputs then agree, no other op is wrong. If an engine shows no tensors
    inside its layers, a quantised model is first run as its F32 twin. If the usual run agrees, the
    further runs of `check` follow. If no op is wrong, `bisect` tries known mistakes, as `diagnose`
    does. For an engine that only samples, it checks the stages of the sampler chain. Exit code: 0
    no difference, 1 wrong ops found, 3 incomplete, 4 the engines diverge and no op is wrong on its
    own inputs. Examples:

    \b
      lockstep bisect model.gguf --engine "./my-engine --threads 1"
      lockstep bisect model.gguf --engine ./my-engine --black-box
      lockstep bisect model.gguf --subject-model broken.gguf
    """
    from lockstep.harness.asking.template import keep_template

    if black_box and (lora or control_vector):
        raise typer.BadParameter("--black-box makes models of yours, which have no adapters")
    engine, began = engine_of(engine, adapter, node_map), time.perf_counter()
    # the template loads llama.cpp meanwhile, and each made model gets a fork of it
    with keep_template(), screen(quiet, as_json) as out, model_folder() as folder:
        from lockstep.harness.adapters import adapter_class
        from lockstep.harness.bisect.report import verdicts_of
        from lockstep.harness.blackbox import report as of_black_box
        from lockstep.harness.catalogue.models import model_for
        from lockstep.harness.check.plan_report import PlanReport, write_plan_report
        from lockstep.harness.cli.bisection import bisection_lines
        from lockstep.harness.context.runner import is_outside
        from lockstep.harness.context.suite import NoAnswer
        from lockstep.harness.parallel.children import result_of
        from lockstep.harness.runs.run import bisect_one, provide_engines, run_folder
        from lockstep.harness.synth.builtin import BUILTIN

        wanted = formats_wanted(formats)
        if text := what_is_quicker(model):
            out.remark(text)
        cls = None if is_outside(engine) else adapter_class(engine)
        shown = getattr(cls, "shows_on", "f32")
        if model is None and shown not in BUILTIN:
            name, path = shown, model_for(shown, Path(folder))
        else:
            name, path = next(iter(models_of(model or Path(f"builtin:{shown}"), folder)))
        plan = plan_of(
            *(name, path, engine, oracle, settings, subject_model, tokens, 64, seed, ["trace"]),
            timeout=timeout,
            adapters=adapters_of(lora, control_vector),
        )
        provide_engines([plan], out.progress)
        command = shlex.join(["lockstep", *sys.argv[1:]])
        if black_box:
            with whole_commands(plan):
                seen = blackbox.bisect(plan, folder, out)
            code, engines = seen.exit_code, seen.whole.engines
            verdicts = of_black_box.verdicts_of(plan, seen, command)
        else:
            try:
                with whole_commands(plan):
                    result = result_of(partial(bisect_one, plan), partial(out.progress, plan.case))
            except NoAnswer as error:
                if not only_samples(error):
                    raise
                diagnosed = diagnosing.run_diagnosis(plan, out)
                code, engines = out.diagnosis(plan, diagnosed), diagnosed.engines
                verdicts = diagnosis.verdicts_of(plan, diagnosed, command)
            else:
                found_by = diagnosing.where_no_op_is_found(plan, result, out)
                code, engines = out.bisection(plan, result, found_by), result.engines
                verdicts = verdicts_of(plan, result, command, bisection_lines(plan, result))
                if found_by:
                    verdicts = chain(verdicts, diagnosis.verdicts_of(plan, found_by, command))
        folder_of_run = run_folder(report, "bisect")
        found = PlanReport(
            plan=plan,
            engines=engines,
            verdicts=verdicts,
            command=command,
            exit_code=code,
            started=began,
        )
        write_plan_report(folder_of_run, found)
        write_formats(wanted, folder_of_run, out)
        out.where(folder_of_run)
    raise typer.Exit(code)


def only_samples(error: "NoAnswer") -> bool:
    """Return True if the engine offers samplers and no models, so that sampler stages take the
    place of ops."""
    from lockstep.harness.locate.locate import LEVELS

    levels = {*(error.detail.get(LEVELS) or ())}
    return "sample" in levels and not levels & {"logits", "greedy", "generate", "logprobs", "embed"}


@contextmanager
def whole_commands(plan: "Plan") -> Iterator[None]:
    """Print the commands that need no tensors, if the engine shows none."""
    from lockstep.harness.blackbox.offers import why_not_asked
    from lockstep.harness.context.suite import NoAnswer
    from lockstep.harness.locate.locate import LEVELS

    try:
        yield
    except NoAnswer as error:
        if LEVELS not in error.detail:
            raise
        sliced = not why_not_asked(plan.engine, error.detail[LEVELS])
        text = "; ".join((str(error), *without_tensors(plan, sliced=sliced)))
        raise NoAnswer(error.status, text, error.detail) from error
