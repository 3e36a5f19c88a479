"""A run over one or more models: plans go in, a report folder and an exit code come out."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.adapters import adapter_class
from lockstep.harness.asking.environments import provide
from lockstep.harness.asking.template import keep_template
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.blackbox.in_check import bisect_made_models, on_twin, questions
from lockstep.harness.check.adapters import check_effect
from lockstep.harness.check.check import (
    REPLAY,
    BadInput,
    Opened,
    Plan,
    defect,
    open_plan,
    run_suites,
    suites_named,
)
from lockstep.harness.check.halves_told import halves_told
from lockstep.harness.context.runner import is_outside
from lockstep.harness.context.suite import NoAnswer, patient
from lockstep.harness.exit_codes import exit_code_of_run
from lockstep.harness.parallel.children import (
    Died,
    Done,
    Event,
    Failed,
    Refused,
    Said,
    Say,
    Unanswered,
)
from lockstep.harness.parallel.works import Executor, events_of
from lockstep.harness.protocol.program import words_for_banner
from lockstep.harness.records import EngineInfo, StageText, Status, Verdict
from lockstep.harness.report.header import header
from lockstep.harness.report.jsonl import ReportWriter
from lockstep.harness.report.page.page import load_templates
from lockstep.harness.runs.file_state import FileState
from lockstep.harness.runs.foretold import Foretold
from lockstep.harness.runs.hints import next_step
from lockstep.harness.runs.known_failures import KnownFailures
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.second_look import look_again
from lockstep.harness.suites.acid import says_that_it_cannot
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.llama import write_llama

BUILTIN_PREFIX = "builtin:"
OF_CHECKS = tuple(f"lockstep.engine.{name}" for name in ("architectures", "quants", "tokenizers"))


@dataclass(frozen=True)
class Remark:
    """A remark during a check, in addition to its verdicts."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Listener:
    """The callbacks that show the progress of a run on the command line."""

    progress: Callable[[str, str], None] = field(default=lambda case, text: None)
    verdict: Callable[[Verdict], None] = field(default=lambda verdict: None)
    remark: Callable[[str], None] = field(default=lambda text: None)
    # called with the report's folder
    opened: Callable[[Path], None] = field(default=lambda folder: None)


def builtin_model(name: str, folder: Path) -> Path:
    """Write a built-in model into the folder, unless it is there, and return its path."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_llama(BUILTIN[name], path)
    return path


def run_folder(reports: Path, what: str) -> Path:
    """Create a folder for one run, named by time, and return it. A second run in the same second
    gets a number."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{what}"
    for n in range(1000):
        folder = reports / (stem if n == 0 else f"{stem}-{n}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{reports / stem} and 999 more exist already")


def run_plans(
    plans: Sequence[Plan],
    reports: Path,
    command: Sequence[str],
    executor: Executor,
    listener: Listener,
    known: KnownFailures | None = None,
) -> RunResult:
    """Check every plan, each in its own process. Each verdict is written to disk before the next
    verdict arrives.

    `known` lists divergences to excuse. A listed divergence that no longer occurs is an error.

    Raises BadInput for an impossible request, before a report is written.
    """
    check_suites(known or KnownFailures())
    provide_engines(plans, listener.progress)
    load_what_checks_need(plans)
    run = CheckRun(plans, reports, shlex.join(command), listener, known or KnownFailures())
    files = [path for plan in plans for path in (plan.model, plan.subject_model)]
    works = [partial(check_one, plan) for plan in plans]
    with keep_template():
        for number, event in events_of(executor, works, files):
            run.take(number, event)
    return run.finish()


def check_suites(known: KnownFailures) -> None:
    """Refuse list entries of unknown suites, because they would never apply. Raises BadInput."""
    suites = {suite.name for suite in suites_named(())}
    for _, suite, key in known.reasons:
        if suite not in suites:
            raise BadInput(
                f"the list of known failures: {key}: no suite {suite!r:.80} ("
                f"known: {', '.join(sorted(suites))})"
            )


def provide_engines(plans: Sequence[Plan], progress: Callable[[str, str], None]) -> None:
    """Build other versions of an engine before child processes start. The build must not run in a
    child process: an interrupt kills child processes, but a build would continue. Raises
    BadInput."""
    for plan in plans:
        for name in (plan.oracle, plan.engine):
            try:
                provide(name, partial(progress, plan.case))
            except Unsupported as error:
                raise BadInput(str(error)) from error


def load_what_checks_need(plans: Sequence[Plan]) -> None:
    """Load the modules of checks once, for all forks. Unknown names are ignored here; opening the
    engine or model refuses them."""
    suites_named(())
    for package in OF_CHECKS:
        import_members(package)
    # compiles the first kernel, which is slow
    WeightFormat.member("F32").dequantize(np.zeros(4, np.uint8))
    for name in {REPLAY, *(name for plan in plans for name in (plan.engine, plan.oracle))}:
        with suppress(EngineError):
            if not is_outside(name):
                adapter_class(name)


class CheckRun:
    """Receives the messages of the processes and writes the report."""

    def __init__(
        self,
        plans: Sequence[Plan],
        reports: Path,
        command: str,
        listener: Listener,
        known: KnownFailures,
    ) -> None:
        self.known = known
        self.started = time.perf_counter()
        self.plans, self.reports, self.command, self.listener = plans, reports, command, listener
        # the current suite of each plan, for a message if the plan's process dies
        self.suite = ["the start"] * len(plans)
        self.changed: set[Path] = set()
        paths = {path for plan in plans for path in (plan.model, plan.subject_model)}
        self.files = {path: FileState.of(path) for path in paths if path.is_file()}
        # by case, because some cases use a replay
        self.engines: dict[str, tuple[EngineInfo, ...]] = {}
        self.writer: ReportWriter | None = None
        self.verdicts: list[Verdict] = []

    def take(self, number: int, event: Event) -> None:
        plan = self.plans[number]
        match event:
            case Said(str(text)):
                if isinstance(text, StageText) and text.suite:
                    self.suite[number] = text.suite
                self.listener.progress(plan.case, text)
            case Said(Verdict() as verdict):
                if verdict.status == "agreed" or not self.says_of_changes(plan):
                    self.write(verdict)
            case Said(Remark(text)):
                self.listener.remark(f"{plan.case}: {text}")
            case Said(engines):
                self.engines[plan.case] = engines
                self.writer = self.writer or self.open(engines)
                load_templates()  # runs while the engines work
            case Done():
                self.says_of_changes(plan)
                self.listener.progress(plan.case, StageText("done"))
            case Refused(message) if self.writer is None:
                raise BadInput(message)
            case _ if not self.says_of_changes(plan):
                self.write(ending(plan, event, self.suite[number]))

    def open(self, engines: tuple[EngineInfo, ...]) -> ReportWriter:
        """Write the first line of the report, and return the report."""
        self.files = {path: state.with_hash(path) for path, state in self.files.items()}
        rows = [row for plan in self.plans for row in model_rows(plan, self.files)]
        head = header(self.command, self.plans[0].seed, rows, engines)
        folder = run_folder(self.reports, "check")
        self.listener.opened(folder)
        return ReportWriter(folder, head)

    def says_of_changes(self, plan: Plan) -> bool:
        """Return True if a file of the plan has changed, which makes the plan's findings invalid.
        Also write a verdict on the change."""
        for path in dict.fromkeys((plan.model, plan.subject_model)):
            if path in self.changed:
                return True
            if path in self.files and (change := self.files[path].change(path)):
                self.changed.add(path)
                self.write(file_changed(plan, change))
                return True
        return False

    def write(self, verdict: Verdict) -> None:
        verdict = self.known.excuse(verdict)
        self.writer = self.writer or self.open(())
        self.verdicts.append(verdict)
        self.writer.verdict(verdict)
        self.listener.verdict(verdict)

    def finish(self) -> RunResult:
        self.writer = self.writer or self.open(())
        for verdict in list(self.known.gone(self.verdicts, self.command)):
            self.write(verdict)
        code = exit_code_of_run(self.verdicts)
        seconds = time.perf_counter() - self.started
        engines = [engine for found in self.engines.values() for engine in found]
        names = {case: [e.engine for e in found] for case, found in self.engines.items()}
        result = RunResult(
            code=code,
            folder=self.writer.path.parent,
            verdicts=self.verdicts,
            engines=tuple(e for n, e in enumerate(engines) if e not in engines[:n]),
            seconds=seconds,
        )
        result.next_step = next_step(self.plans, result)
        more = {"next": result.next_step.split("\n")} if result.next_step else {}
        self.writer.footer(code, seconds, engines=names, **more)
        return result


def check_one(plan: Plan, say: Say) -> None:
    """Check one plan. Send progress as texts, then the engines, then each verdict."""
    try:
        opened = opened_for(plan, say)
    except (BadInput, NoAnswer) as error:
        says_so = isinstance(error, BadInput) or says_that_it_cannot(error)
        if not (plan.optional and says_so):
            raise
        say(not_taken(plan, str(error)))
        return
    try:
        say(opened.engines)
        for engine in opened.engines:
            if engine.printed:
                say(Remark(words_for_banner(engine.engine, engine.printed)))
        check_effect(opened.context)
        opened.context.on_made_models = questions(plan)
        opened.context.on_answer = Foretold(
            context=opened.context,
            suites=plan.suites,
            remark=lambda text: say(Remark(text)),
        )
        found = []
        verdicts = run_suites(opened.context, plan.suites)
        for verdict in look_again(plan, verdicts, partial(opened_for, say=say), say):
            refused = plan.optional and verdict.detail.get("refused")
            found.append(not_taken(plan, verdict.summary) if refused else verdict)
            say(found[-1])
        for verdict in halves_told(opened.context, found):
            say(verdict)
    finally:
        opened.close()


def not_taken(plan: Plan, why: str) -> Verdict:
    """Return the verdict on a model that an engine may refuse. The verdict is reported, but does
    not change the exit code."""
    return Verdict(
        suite=plan.suites[0],
        case=plan.case,
        status="not-applicable",
        summary=why,
        detail={"optional": True},
        repro=f"lockstep check {plan.command} --suite {plan.suites[0]}",
    )


def opened_for(plan: Plan, say: Say) -> Opened:
    try:
        return open_plan(plan, say)
    except NoAnswer as error:
        raise patient(error) from error


def bisect_one(plan: Plan, say: Say) -> None:
    """Bisect one plan. Send progress as texts, and then the Bisection."""
    opened = opened_for(plan, say)
    try:
        opened.context.on_made_models = questions(plan)
        found = bisect(opened.context, partial(on_twin, plan, opened.context))
        found = bisect_made_models(plan, opened.context, found.others) or found
        say(replace(found, engines=opened.engines))
    except NoAnswer as error:
        raise patient(error) from error
    finally:
        opened.close()


def file_changed(plan: Plan, change: str) -> Verdict:
    text = f"{change}; later findings do not count"
    return Verdict(
        suite="file",
        case=plan.case,
        status="not-compared",
        summary=text,
        repro=f"lockstep check {plan.command}",
    )


def ending(plan: Plan, event: Event, suite: str) -> Verdict:
    """Return the verdict on a check that did not finish."""
    status: Status = "not-compared"
    text, detail = "", {}
    match event:
        case Refused(message):
            text = message
        case Unanswered(how_it_ended, summary, said):
            status, text, detail = how_it_ended, summary, said
        case Died(how):
            who = f"the process in which {plan.engine} was checked"
            status, text = "crashed", f"{who} {how} during {suite}"
        case Failed(message, trace):
            status, text, detail = "internal", defect(message), {"traceback": trace}
    return Verdict(
        suite=suite,
        case=plan.case,
        status=status,
        summary=text,
        detail=detail,
        key=f"{suite}/{status}",
        repro=f"lockstep check {plan.command}",
    )


def model_rows(plan: Plan, files: Mapping[Path, FileState]) -> Iterator[dict[str, Any]]:
    """Yield rows about the checked files. The row of a built-in model has its recipe."""
    name = plan.case.removeprefix(BUILTIN_PREFIX)
    builtin = plan.case.startswith(BUILTIN_PREFIX) and name in BUILTIN
    recipe = {"recipe": asdict(BUILTIN[name])} if builtin else {}
    if plan.subject_model == plan.model:
        yield {"case": plan.case, "role": "both"} | files[plan.model].row() | recipe
    else:
        yield {"case": plan.case, "role": "oracle"} | files[plan.model].row() | recipe
        other = plan.subject_model
        yield {"case": other.name, "role": "subject"} | files[other].row()
