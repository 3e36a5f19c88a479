"""One run over one or more models: plans in, a report folder and an exit code out."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.check import Plan, exit_code, open_plan, run_suites
from harness.processes import processes
from harness.records import EngineInfo, Verdict
from harness.report.header import header, model_row
from harness.report.jsonl import ReportWriter
from harness.synth.builtin import BUILTIN
from harness.synth.llama import write_llama

BUILTIN_PREFIX = "builtin:"


@dataclass(kw_only=True)
class RunResult:
    code: int
    folder: Path
    verdicts: list[Verdict]
    engines: tuple[EngineInfo, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Listener:
    """What the command line shows while a run goes on."""

    progress: Callable[[str, str], None] = field(default=lambda case, text: None)
    verdict: Callable[[Verdict], None] = field(default=lambda verdict: None)


def builtin_model(name: str, folder: Path) -> Path:
    """Write a built-in model once into the folder."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_llama(BUILTIN[name], path)
    return path


def run_folder(reports: Path, what: str) -> Path:
    """A new folder for one run, named by time; a second run in the same second gets a number."""
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
    plans: Sequence[Plan], reports: Path, command: Sequence[str], jobs: int, listener: Listener
) -> RunResult:
    """Check every plan; each verdict is on disk before the next one is made."""
    started = time.perf_counter()
    first = open_plan(plans[0], lambda text: listener.progress(plans[0].case, text))
    folder = run_folder(reports, "check")
    rows = [row for plan in plans for row in model_rows(plan)]
    writer = ReportWriter(folder, header(shlex.join(command), plans[0].seed, rows, first.engines))
    verdicts: list[Verdict] = []
    if jobs > 1 and len(plans) > 1:
        first.close()
        stream = in_parallel(plans, jobs, listener)
    else:
        stream = one_by_one(plans, first, listener)
    for verdict in stream:
        verdicts.append(verdict)
        writer.verdict(verdict)
        listener.verdict(verdict)
    code = exit_code(verdicts)
    seconds = time.perf_counter() - started
    writer.footer(code, seconds)
    return RunResult(
        code=code, folder=folder, verdicts=verdicts, engines=first.engines, seconds=seconds
    )


def one_by_one(plans: Sequence[Plan], first: Any, listener: Listener) -> Iterator[Verdict]:
    for i, plan in enumerate(plans):
        opened = first if i == 0 else open_plan(plan, progress_of(plan, listener))
        try:
            yield from run_suites(opened.context, plan.suites)
        finally:
            opened.close()


def progress_of(plan: Plan, listener: Listener) -> Callable[[str], None]:
    return lambda text: listener.progress(plan.case, text)


def in_parallel(plans: Sequence[Plan], jobs: int, listener: Listener) -> Iterator[Verdict]:
    """Whole models side by side, each in a process of its own."""
    with processes(min(jobs, len(plans))) as pool:
        futures = {pool.submit(check_one, plan): plan for plan in plans}
        for done in as_completed(futures):
            listener.progress(futures[done].case, "done")
            yield from done.result()


def check_one(plan: Plan) -> list[Verdict]:
    opened = open_plan(plan, lambda _: None)
    try:
        return list(run_suites(opened.context, plan.suites))
    finally:
        opened.close()


def model_rows(plan: Plan) -> Iterator[dict[str, Any]]:
    """Which bytes were checked, and for a built-in model the recipe that makes them."""
    extra: Mapping[str, Any] = {}
    name = plan.case.removeprefix(BUILTIN_PREFIX)
    if plan.case.startswith(BUILTIN_PREFIX) and name in BUILTIN:
        extra = {"recipe": asdict(BUILTIN[name])}
    if plan.subject_model == plan.model:
        yield model_row(plan.case, plan.model, "both", **extra)
    else:
        yield model_row(plan.case, plan.model, "oracle", **extra)
        yield model_row(plan.subject_model.name, plan.subject_model, "subject")
