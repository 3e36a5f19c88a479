"""The contract of a fuzzer, and a campaign: plan in, a report folder and an exit code out."""

import importlib
import importlib.util
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import Unsupported
from engine.registry import Registered, import_members
from harness.check import BadInput, described, exit_code
from harness.processes import processes
from harness.records import EXACT, EngineInfo, Settings, Verdict
from harness.report.header import header
from harness.report.jsonl import ReportWriter
from harness.run import Listener, RunResult, run_folder
from harness.runner import Runner

Progress = Callable[[str, str], None]  # (target, text)


@dataclass(frozen=True, kw_only=True)
class FuzzPlan:
    """What was asked for. Case n depends on seed, target and n alone, so a run goes on at `start`.

    `seconds` bounds the time of each target; what it did not reach is in no verdict, and the
    verdicts say where the next run starts. `given` are cases of the user's own, instead of numbered
    ones.
    """

    targets: tuple[str, ...] = ()  # of the fuzzer's list; all if empty
    engine: str = "reference"
    oracle: str = "llama.cpp"
    cases: int = 1_000_000  # for each target
    start: int = 0
    seconds: float | None = None
    seed: int = 0
    given: tuple[bytes, ...] = ()
    settings: Settings = EXACT
    time_limit: float = 300.0
    memory_limit: int = 8 << 30

    def runner(self) -> Runner:
        return Runner(time_limit=self.time_limit, memory_limit=self.memory_limit)

    def command(self, fuzzer: str, target: str, *options: str) -> str:
        """What shows a finding again; the options say which case."""
        words = ["lockstep", "fuzz", fuzzer, "--type", target, "--engine", self.engine]
        words += [] if self.oracle == "llama.cpp" else ["--oracle", self.oracle]
        return shlex.join([*words, *options])


class Fuzzer(Registered):
    """Asks two engines about cases without end. `targets` are the parts that can run alone."""

    def targets(self) -> list[str]:
        raise NotImplementedError

    def check(self, plan: FuzzPlan) -> None:
        """Raises BadInput for a plan that makes no sense."""
        for name in plan.targets:
            if name not in self.targets():
                known = ", ".join(self.targets())
                raise BadInput(f"fuzz {self.name} knows no {name!r} (known: {known})")

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict]:
        """Target by target, at least one verdict for each, with the cases that it is about."""
        raise NotImplementedError


def fuzzer_named(name: str) -> Fuzzer:
    """The file that is named after it is tried first: a worker needs no other."""
    package = "harness.fuzzers"
    if importlib.util.find_spec(f"{package}.{name}"):
        importlib.import_module(f"{package}.{name}")
    else:
        import_members(package)
    return Fuzzer.named(name)()


def run_campaign(
    name: str,
    plan: FuzzPlan,
    reports: Path,
    command: Sequence[str],
    jobs: int = 1,
    listener: Listener | None = None,
) -> RunResult:
    """Every verdict is on disk before the next one is made. Raises BadInput before any work."""
    listener = listener or Listener()
    fuzzer = fuzzer_named(name)
    fuzzer.check(plan)
    engines = engines_of(plan)
    started = time.perf_counter()
    folder = run_folder(reports, f"fuzz-{name}")
    about = header(shlex.join(command), plan.seed, (), engines)
    writer = ReportWriter(folder, {**about, "campaign": campaign_row(fuzzer, plan)})
    each = [replace(plan, targets=(target,)) for target in plan.targets or fuzzer.targets()]
    verdicts: list[Verdict] = []
    for verdict in stream_of(fuzzer, each, jobs, listener):
        verdicts.append(verdict)
        writer.verdict(verdict)
        listener.verdict(verdict)
    code, seconds = exit_code(verdicts), time.perf_counter() - started
    writer.footer(code, seconds)
    return RunResult(code=code, folder=folder, verdicts=verdicts, engines=engines, seconds=seconds)


def engines_of(plan: FuzzPlan) -> tuple[EngineInfo, ...]:
    with ExitStack() as stack:
        try:
            runner = plan.runner()
            opened = [runner.open(name, None, plan.settings) for name in (plan.oracle, plan.engine)]
        except Unsupported as error:
            raise BadInput(str(error)) from error
        for session in opened:
            stack.enter_context(session)
        return tuple(described(session) for session in opened)


def campaign_row(fuzzer: Fuzzer, plan: FuzzPlan) -> dict[str, object]:
    return {
        "fuzzer": fuzzer.name,
        "targets": list(plan.targets or fuzzer.targets()),
        "cases": plan.cases,
        "start": plan.start,
        "seconds": plan.seconds,
        "given": [case.hex() for case in plan.given],
    }


def stream_of(
    fuzzer: Fuzzer, plans: Sequence[FuzzPlan], jobs: int, listener: Listener
) -> Iterator[Verdict]:
    """Targets side by side, each in a process of its own, or one after the other."""
    if jobs == 1 or len(plans) == 1:
        for plan in plans:
            yield from fuzzer.run(plan, listener.progress)
            listener.progress(plan.targets[0], "done")
        return
    with processes(min(jobs, len(plans))) as pool:
        futures = {pool.submit(run_one, fuzzer.name, plan): plan for plan in plans}
        for done in as_completed(futures):
            listener.progress(futures[done].targets[0], "done")
            yield from done.result()


def run_one(name: str, plan: FuzzPlan) -> list[Verdict]:
    return list(fuzzer_named(name).run(plan, lambda target, text: None))
