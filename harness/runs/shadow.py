"""`lockstep shadow`: judges llama.cpp's graph, for one model or for a model of every
architecture."""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.ops.build import Build
from lockstep.harness.adapters import adapter_class
from lockstep.harness.asking.facts import size_of_positions, too_long, what_it_is, why_no_run
from lockstep.harness.check.check import CELLS, BadInput
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import NoAnswer, no_answer
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.judging.lanes import lanes_of
from lockstep.harness.parallel.works import Executor, as_done
from lockstep.harness.records import (
    Answered,
    EngineInfo,
    Rejected,
    Settings,
    StageText,
    Status,
    Unanswerable,
    Verdict,
)
from lockstep.harness.report.header import header, model_row
from lockstep.harness.report.jsonl import ReportWriter
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.run import Listener, run_folder
from lockstep.harness.shadow.batches import Work, batches_of
from lockstep.harness.shadow.fault_verdicts import detail_of, ending_of
from lockstep.harness.shadow.faults import Trials
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.shadow.known import known_crash, perhaps_amx
from lockstep.harness.shadow.models import make_variants
from lockstep.harness.shadow.nodes import capture
from lockstep.harness.shadow.verdicts import SUITE, all_seen, verdicts_of
from lockstep.harness.synth.any_arch import variants
from lockstep.harness.synth.draws import stream

ENGINE = "llama.cpp"


@dataclass(frozen=True, kw_only=True)
class ShadowPlan:
    """A plan of a shadow run, for a file or for a variant that is generated."""

    case: str
    model: Path | None
    variant: str = ""
    quant: str = "F32"
    settings: Settings
    work: Work = field(default_factory=Work)
    seed: int = 0
    time_limit: float = 300.0
    trials: tuple[int, ...] = ()  # numbers of trials with faults; empty: judge llama.cpp itself
    options: tuple[str, ...] = ()  # options that repeat the run, without the model

    @property
    def repro(self) -> str:
        what = ["--arch", self.variant] if self.variant else [str(self.model)]
        return shlex.join(["lockstep", "shadow", *what, *self.options])

    @property
    def by_trial(self) -> "Iterator[ShadowPlan]":
        """Yield a plan for each fault, with the options that repeat this fault alone."""
        for number in self.trials:
            options = (*self.options, "--faults", "1", "--start", str(number))
            yield replace(self, trials=(number,), options=options)


@dataclass(kw_only=True)
class Judged:
    """The verdicts of one plan, small enough to send between processes."""

    case: str
    verdicts: list[Verdict]
    row: dict[str, Any]
    engine: EngineInfo | None = None
    problem: str = field(default="")


def path_of(plan: ShadowPlan, folder: Path) -> Path:
    return plan.model or folder / f"{plan.variant}.gguf"


def judge_model(plan: ShadowPlan, folder: Path) -> Judged:
    """Run the model with llama.cpp, and judge every node. `folder` is for the files of variants."""
    generic: tuple[str, ...] = ()
    try:
        path = path_of(plan, folder)
        row = model_row(plan.case, path, "both")
        with Runner(time_limit=plan.time_limit).open(ENGINE, path, plan.settings) as session:
            info = session.ask("describe")
            if not isinstance(info, Answered):
                raise no_answer(ENGINE, "describe", info)
            generic = info.value.generic
            work = faults_found if plan.trials else verdicts_for
            found = list(work(plan, path, session, build_of(plan, info.value)))
        return Judged(case=plan.case, verdicts=found, row=row, engine=info.value)
    except NoAnswer as error:
        text, detail = f"{plan.case}: {error}", dict(error.detail)
        known = known_crash(plan.variant, plan.settings.name, (plan.quant,), generic)
        if error.status == "crashed" and known:
            text, detail["known"] = f"{text} (known: {known})", known
        elif error.status == "crashed":
            text += perhaps_amx(plan.settings, text)
        verdict = verdict_of(plan, error.status, text, detail, (SUITE, error.status))
    except EngineError as error:  # the error is about this model; the next model is judged anyway
        verdict = verdict_of(plan, "not-compared", f"{plan.case}: {error}", key=(SUITE, "model"))
    return Judged(case=plan.case, verdicts=[verdict], row={})


def settings_for(
    work: Work,
    preset: Settings,
    *,
    ubatch: int | None = None,
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
) -> Settings:
    """Return the preset with a cache that is large enough for the work. The ubatch size is large
    enough too, unless `ubatch` is given."""
    return replace(
        preset,
        n_ctx=max(preset.n_ctx, -(-work.cells // CELLS) * CELLS),
        n_ubatch=ubatch or max(preset.n_ubatch, max(work.lengths) * work.sequences),
        type_k=cache_type_k or preset.type_k,
        type_v=cache_type_v or preset.type_v,
    )


def make_models(plans: Sequence[ShadowPlan], folder: Path) -> None:
    made = [plan for plan in plans if plan.variant]
    if made:
        names, first = [plan.variant for plan in made], made[0]  # all plans have the same options
        make_variants(names, folder, seed=first.seed, quant=first.quant)


def build_of(plan: ShadowPlan, engine: EngineInfo) -> Build:
    threads = plan.settings.n_threads
    return Build(lanes=lanes_of(engine.build), n_threads=threads, generic=engine.generic)


def verdicts_for(plan: ShadowPlan, path: Path, session: Session, build: Build) -> Iterator[Verdict]:
    with open_model(path) as file:
        if reason := why_no_run(*what_it_is(file), len(file.tensors)):
            yield verdict_of(plan, "not-applicable", reason)
            return
        if reason := too_long(size_of_positions(file), sum(plan.work.lengths)):
            yield verdict_of(plan, "not-compared", f"{reason}; use fewer --tokens")
            return
        judge = ShadowJudge(file, build)
        outcome = capture(session, judge, batches_of(plan.work, plan.seed, file))
        if isinstance(outcome, Unanswerable):
            yield verdict_of(plan, "excused", f"{ENGINE} shows no such graph: {outcome.message}")
            return
        if isinstance(outcome, Rejected):  # for example, because settings do not fit this model
            text = f"{ENGINE} refuses: {outcome.message}"
            yield verdict_of(plan, "not-compared", text, key=(SUITE, "refused"))
            return
        if not isinstance(outcome, Answered):
            yield from verdicts_of(judge, lambda *a: verdict_of(plan, *a))
            raise no_answer(ENGINE, "capture", outcome)
        yield from verdicts_of(judge, lambda *a: verdict_of(plan, *a))
        if wrong := all_seen(judge, outcome):
            yield verdict_of(plan, "not-compared", wrong)


def faults_found(plan: ShadowPlan, path: Path, session: Session, build: Build) -> Iterator[Verdict]:
    """Yield a verdict for each fault. The judge must find the fault at its node, and nowhere
    else."""
    with open_model(path) as file:
        trials = Trials(
            session=session,
            batches=batches_of(plan.work, plan.seed, file)[:2],
            judge=lambda: ShadowJudge(file, build),
            seed=plan.seed,
        )
        for one, trial in zip(plan.by_trial, trials.run(plan.trials), strict=True):
            status, summary, key = ending_of(trial)
            yield verdict_of(one, status, summary, detail_of(trial), key)


def verdict_of(
    plan: ShadowPlan,
    status: Status,
    summary: str,
    detail: dict[str, Any] | None = None,
    key: tuple[str, ...] = (),
) -> Verdict:
    return Verdict(
        suite=SUITE,
        case=plan.case,
        status=status,
        summary=summary,
        detail=detail or {},
        key="/".join(key),
        repro="" if status == "agreed" else plan.repro,
        about=ENGINE,
    )


# --- a run ------------------------------------------------------------------------------------


def run_shadow(
    plans: Sequence[ShadowPlan],
    reports: Path,
    command: Sequence[str],
    executor: Executor | None,
    listener: Listener,
) -> RunResult:
    """Run the plans. Each model's verdicts are written to disk before the verdicts of the next
    model. Raises Unsupported if the libraries are not the pinned llama.cpp."""
    started = time.perf_counter()
    refuse_broken(plans)
    adapter_class(ENGINE).check_libraries()
    verdicts: list[Verdict] = []
    writer: ReportWriter | None = None
    folder = Path()
    engines: tuple[EngineInfo, ...] = ()
    with TemporaryDirectory(prefix="lockstep-") as models:
        make_models(plans, Path(models))
        for result in results(plans, Path(models), executor, listener.progress):
            if writer is None:
                folder = run_folder(reports, SUITE)
                listener.opened(folder)
                engines = (result.engine,) if result.engine else ()
                rows = rows_of(plans, result)
                writer = ReportWriter(
                    folder, header(shlex.join(command), plans[0].seed, rows, engines)
                )
            for verdict in result.verdicts:
                verdicts.append(verdict)
                writer.verdict(verdict)
                listener.verdict(verdict)
    code = exit_code(verdicts)
    seconds = time.perf_counter() - started
    assert writer is not None
    writer.footer(code, seconds)
    return RunResult(code=code, folder=folder, verdicts=verdicts, engines=engines, seconds=seconds)


def refuse_broken(plans: Sequence[ShadowPlan]) -> None:
    """Refuse broken models before the first model is judged. Raises BadInput."""
    for plan in plans:
        if plan.model is None:
            continue
        try:
            open_model(plan.model).close()
        except EngineError as error:
            raise BadInput(f"{plan.model}: {error}") from error


def rows_of(plans: Sequence[ShadowPlan], first: Judged) -> list[dict[str, Any]]:
    """Return the header's rows of the given files. For generated models the command contains the
    recipe."""
    if len(plans) == 1:
        return [first.row] if first.row else []
    return [model_row(plan.case, plan.model, "both") for plan in plans if plan.model is not None]


def results(
    plans: Sequence[ShadowPlan],
    folder: Path,
    executor: Executor | None,
    progress: Callable[[str, str], None],
) -> Iterator[Judged]:
    def here(plan: ShadowPlan) -> Judged:
        progress(plan.case, StageText.of_suite(SUITE))
        return judge_model(plan, folder)

    work = here if executor is None else partial(judge_model, folder=folder)
    files = [path_of(plan, folder) for plan in plans]
    for result in as_done(work, plans, executor, files, verdict_of_death):
        progress(result.case, StageText("done"))
        yield result


def verdict_of_death(plan: ShadowPlan, how: str) -> Judged:
    text = f"{plan.case}: the process that judged this model {how}"
    return Judged(case=plan.case, verdicts=[verdict_of(plan, "crashed", text)], row={})


def with_trials(plans: Sequence[ShadowPlan], numbers: Sequence[int]) -> list[ShadowPlan]:
    """Return the plans with the faults distributed over the models, in a seeded order."""
    by = np.argsort(stream(plans[0].seed, "fault models").random_raw(len(plans)), kind="stable")
    dealt = {int(i): numbers[place :: len(plans)] for place, i in enumerate(by)}
    return [replace(plan, trials=tuple(dealt[i])) for i, plan in enumerate(plans) if dealt[i]]


def every_variant() -> tuple[str, ...]:
    return tuple(variants())
