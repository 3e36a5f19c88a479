"""Runs the checkpoint with transformers and a GGUF file with an engine, and compares outputs and
layers.

The checkpoint is an engine like others (harness.foreign, `originals:FOLDER`). Each of its tensors
is computed again from its own inputs, according to llama.cpp's graph, and compared. Its outputs may
differ from the file's by the noise of honest runs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.asking.facts import facts_of_model
from lockstep.harness.check.check import BadInput, Plan, open_plan
from lockstep.harness.check.settings import settings_named
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.foreign.building import is_added
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.judging.conversions import is_quantised
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.known.originals import known_of_originals
from lockstep.harness.locate.locate import locate
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.compare import architecture_of, flatten_config
from lockstep.harness.originals.config import OriginalConfig
from lockstep.harness.originals.findings import (
    DifferenceKind,
    OriginalPart,
    PartResult,
    QuantisationLoss,
    SkipReason,
)
from lockstep.harness.originals.narrowed import stored_otherwise, with_changes
from lockstep.harness.parallel.children import Say, result_of
from lockstep.harness.records import Mismatch, Request, Verdict
from lockstep.harness.report.text import explain_finding
from lockstep.harness.runs.original_loss import run_for_loss
from lockstep.harness.suites.embeddings import as_run
from lockstep.harness.suites.parts.whole_runs import compare_runs

ENGINE = "originals"
RESULTS = "results"  # place of a run that was not compared
PROMPTS = 3


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run. `engine` runs the GGUF file."""

    engine: str = "llama.cpp"
    n_tokens: int = 32
    seed: int = 0
    time_limit: float = 300.0


@dataclass(kw_only=True)
class RunOfOriginal:
    """The result of a run: the number of judged tensors, the wrong tensors in graph order, and the
    comparison of the outputs.

    sizes: n_ctx cells in the cache, and n_tokens of each text.
    """

    sizes: Mapping[str, int]
    judged: int = 0
    wrong: list[SiteFinding] = field(default_factory=list)
    outputs: list[Verdict] = field(default_factory=list)


def compare_results(
    folder: Path, model: Path, options: RunOptions, progress: Callable[[str], None]
) -> PartResult:
    """Run the checkpoint and the file, and compare them. Raises RuntimeError for a defect of
    Lockstep."""
    result = PartResult(part=OriginalPart.run)
    if not is_added(ENGINES[ENGINE]):
        result.skip(SkipReason.no_environment, RESULTS)
        return result
    with ExitStack() as open_files:
        file = open_files.enter_context(open_model(model))
        try:
            checkpoint = OriginalCheckpoint(folder)
            quantised = is_quantised(file)
            changes = stored_otherwise(checkpoint, file, rounds=not quantised)
            made = open_files.enter_context(with_changes(checkpoint, changes))
            plan = plan_for(made.resolve(), model, options)
            if quantised:
                result.skip(SkipReason.quantised, RESULTS)
                result.loss = loss_of(plan, progress)
            else:
                found = result_of(partial(run_both, plan), progress)
                note_run(result, found, partial(find_known, checkpoint.config, found.sizes))
        except (BadInput, NoAnswer, EngineError, OSError) as error:
            result.skip(SkipReason.no_answer, RESULTS, str(error))
    return result


def plan_for(folder: Path, model: Path, options: RunOptions) -> Plan:
    return Plan(
        case=model.name,
        model=model,
        subject_model=model,
        engine=f"{ENGINE}:{folder}",
        oracle=options.engine,
        settings=settings_named("exact"),
        suites=("trace",),
        n_tokens=options.n_tokens,
        seed=options.seed,
        time_limit=options.time_limit,
    )


def loss_of(plan: Plan, progress: Callable[[str], None]) -> QuantisationLoss | None:
    """Return the loss of a quantised file; None if it has no logits. Raises the same errors as
    `result_of`."""
    if not facts_of_model(plan.model).has_logits:
        return None
    found: QuantisationLoss = result_of(partial(run_for_loss, plan), progress)
    return found


def run_both(plan: Plan, say: Say) -> None:
    """Send progress as texts, and at the end the RunOfOriginal."""
    opened = open_plan(plan, say)
    try:
        say(judge_runs(opened.context))
    finally:
        opened.close()


def judge_runs(context: Context) -> RunOfOriginal:
    """Judge the tensors of the first prompt, then the outputs of all prompts, until an output is
    wrong."""
    context.begin_noise()
    found = locate(context)
    judged = sum(each.compared > 0 for each in found.all)
    n_tokens = sum(map(len, context.batches))
    sizes = {"n_ctx": context.settings.n_ctx, "n_tokens": n_tokens}
    result = RunOfOriginal(sizes=sizes, judged=judged)
    result.wrong = wrong_places(found.guilty)
    context = context.for_embeddings() if found.embeddings else context
    for number in range(PROMPTS):
        verdict = compare_outputs(context, with_seed(context, number) if number else context)
        result.outputs.append(verdict)
        if verdict.status != "agreed":
            break
    return result


def with_seed(context: Context, number: int) -> Context:
    """Return the same context with other prompt tokens."""
    return replace(context, seed=context.seed + number, begun={})


def wrong_places(guilty: Sequence[SiteFinding]) -> list[SiteFinding]:
    """Return one finding for each node and layer."""
    found: dict[tuple[int | None, str], SiteFinding] = {}
    for each in guilty:
        found.setdefault((each.layer, each.site.name), each)
    return list(found.values())


def compare_outputs(context: Context, prompt: Context) -> Verdict:
    """Compare the logits or embeddings of a prompt. `context` holds the noise that was measured
    before."""
    batches = prompt.batches
    context.progress(f"outputs of both, {len(batches[0])} tokens, seed {prompt.seed}")
    if context.embeddings:
        expected, actual = map(as_run, context.ask_both("embed", batches))
    else:
        expected, actual = context.ask_both("evaluate", Request(batches=batches))
    honest = context.honest.floor(batches, seed=context.seed, runs=0)
    truth = np.concatenate(honest.logits)
    what = "embedding" if context.embeddings else "logit"
    return compare_runs(context, "original", batches, expected, actual, truth, what)


def find_known(
    config: Mapping[str, Any], sizes: Mapping[str, int], node: str, worst: Mismatch
) -> str:
    """Return the id of the known difference that explains a wrong node; "" if none does."""
    row = architecture_of(config)
    facts = OriginalConfig(flatten_config(config), row.defaults).facts
    known = (
        each for each in known_of_originals() if each.explains(row.name, facts, sizes, node, worst)
    )
    return next((each.id for each in known), "")


def note_run(
    result: PartResult, found: RunOfOriginal, known: Callable[[str, Mismatch], str]
) -> None:
    """Add the run's differences to the result: wrong places, or wrong outputs if no place is wrong.

    `known` returns the id of the known difference that explains a node, or "".
    """
    misshapen = [each for each in found.wrong if each.mismatch and each.mismatch.kind != "value"]
    if misshapen:  # the engine runs another model, so its values are not comparable
        result.skip(SkipReason.no_answer, RESULTS, explain_finding(misshapen[0]))
        return
    result.compared = found.judged + sum(v.status == "agreed" for v in found.outputs)
    for each in found.wrong:
        mismatch = each.mismatch
        assert mismatch is not None
        result.add(
            DifferenceKind.computed,
            str(each.site),
            mismatch.actual,
            mismatch.expected,
            layer=each.layer,
            op=each.op,
            error=each.err_local,
            allowed=each.allowed,
            at_fault=each.at_fault,
        )
        if name := known(each.site.name, mismatch):
            found_before = result.differences.pop()
            detail = {**found_before.detail, "known": name}
            result.known.append(replace(found_before, detail=detail))
    for verdict in found.outputs:
        said = verdict.detail
        if verdict.status == "diverged" and not found.wrong:
            shown = ("worst_relative_to_largest_logit", "allowed_relative", "index", "at_fault")
            result.add(
                DifferenceKind.outputs,
                said.get("what", "logit"),
                said["actual"],
                said["expected"],
                **{name: said[name] for name in shown},
            )
        elif verdict.status not in ("agreed", "diverged"):
            result.skip(SkipReason.no_answer, RESULTS, verdict.summary)
