"""The contract of a fuzzer, and a campaign: plan in, a report folder and an exit code out."""

import importlib
import importlib.util
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Queue

from engine.choices import choices
from engine.errors import Unsupported
from engine.registry import Registered, import_members
from harness.check import BadInput, described
from harness.environments import provide
from harness.exit_codes import exit_code
from harness.processes import processes, shared
from harness.records import EXACT, EngineInfo, Settings, Verdict
from harness.report.header import header
from harness.report.jsonl import ReportWriter, plain
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
    files: tuple[Path, ...] = ()  # likewise, where the fuzzer takes whole files
    corpus: Path | None = None  # a folder of files to start from, where the fuzzer mutates files
    witness: bool = True  # ask a third engine too, where the fuzzer has one
    keep: Path | None = None  # a folder for files worth keeping, where the fuzzer keeps any
    found: tuple[str, ...] = ()  # keys of findings that need not be told again
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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything about a target's cases before `done` has been said."""

    target: str
    done: int


class Fuzzer(Registered):
    """Asks two engines about cases without end. `targets` are the parts that can run alone."""

    def targets(self) -> list[str]:
        raise NotImplementedError

    def check(self, plan: FuzzPlan) -> None:
        """Raises BadInput for a plan that makes no sense."""
        for name in plan.targets:
            if name not in self.targets():
                known = choices(name, self.targets())
                raise BadInput(f"fuzz {self.name} knows no {name!r} {known}")

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict | Checkpoint]:
        """Target by target, at least one verdict for each, with the cases that it is about.

        A checkpoint is for who may be stopped: behind it a run goes on (harness.fuzzers._resume).
        One follows each target in any case.
        """
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
    engines = engines_of(plan, lambda text: listener.progress(f"fuzz {name}", text))
    folder = run_folder(reports, f"fuzz-{name}")
    about = header(shlex.join(command), plan.seed, (), engines)
    writer = ReportWriter(folder, {**about, "campaign": campaign_row(fuzzer, plan)})
    each = [replace(plan, targets=(target,)) for target in plan.targets or fuzzer.targets()]
    return written(fuzzer, each, writer, engines, jobs, listener)


def written(
    fuzzer: Fuzzer,
    plans: Sequence[FuzzPlan],
    writer: ReportWriter,
    engines: tuple[EngineInfo, ...],
    jobs: int,
    listener: Listener,
    before: Sequence[Verdict] = (),
) -> RunResult:
    """Run and write to the end. before: verdicts that are in the report already."""
    started = time.perf_counter()
    verdicts, told = list(before), {as_text(verdict) for verdict in before}
    with closing(writer), told_how_to_go_on(fuzzer, writer.path.parent):
        for made in stream_of(fuzzer, plans, jobs, listener):
            if isinstance(made, Checkpoint):
                writer.checkpoint(made.target, made.done)
            elif as_text(made) not in told:
                verdicts.append(made)
                writer.verdict(made)
                listener.verdict(made)
        code, seconds = exit_code(verdicts), time.perf_counter() - started
        writer.footer(code, seconds)
    folder = writer.path.parent
    return RunResult(code=code, folder=folder, verdicts=verdicts, engines=engines, seconds=seconds)


@contextmanager
def told_how_to_go_on(fuzzer: Fuzzer, folder: Path) -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        text = "a process of the run was killed, by the system for want of memory or by somebody"
        again = shlex.join(["lockstep", "fuzz", fuzzer.name, "--resume", str(folder)])
        raise ChildProcessError(f"{text}; go on with {again}") from error


def as_text(verdict: Verdict) -> str:
    return json.dumps(plain(asdict(verdict)), sort_keys=True)


def engines_of(
    plan: FuzzPlan, progress: Callable[[str], None] = lambda _: None
) -> tuple[EngineInfo, ...]:
    names = (plan.oracle, plan.engine)
    with ExitStack() as stack:
        try:
            for name in names:
                provide(name, progress)
            opened = [plan.runner().open(name, None, plan.settings) for name in names]
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
        **({"files": [str(path) for path in plan.files]} if plan.files else {}),
        **({"corpus": str(plan.corpus)} if plan.corpus else {}),
        **({} if plan.witness else {"witness": False}),
        **({"keep": str(plan.keep)} if plan.keep else {}),
    }


def stream_of(
    fuzzer: Fuzzer, plans: Sequence[FuzzPlan], jobs: int, listener: Listener
) -> Iterator[Verdict | Checkpoint]:
    """Targets side by side, each in a process of its own, or one after the other."""
    if jobs == 1 or len(plans) == 1:
        for plan in plans:
            yield from whole_target(fuzzer, plan, listener.progress)
            listener.progress(plan.targets[0], "done")
        return
    with shared() as manager, processes(min(jobs, len(plans))) as pool:
        made: Queue[Verdict | Checkpoint] = manager.Queue()
        running = {pool.submit(run_one, fuzzer.name, plan, made): plan for plan in plans}
        try:
            while running:
                done, _ = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
                yield from waiting(made)
                for future in done:
                    listener.progress(running.pop(future).targets[0], "done")
                    future.result()
        except (KeyboardInterrupt, BrokenProcessPool):
            yield from waiting(made)  # it was found before the end came
            raise
        yield from waiting(made)


def waiting(made: "Queue[Verdict | Checkpoint]") -> Iterator[Verdict | Checkpoint]:
    while not made.empty():
        yield made.get()


def whole_target(
    fuzzer: Fuzzer, plan: FuzzPlan, progress: Progress
) -> Iterator[Verdict | Checkpoint]:
    said = -1
    for made in fuzzer.run(plan, progress):
        said = made.done if isinstance(made, Checkpoint) else said
        yield made
    if said < 0:
        yield Checkpoint(target=plan.targets[0], done=plan.start + plan.cases)


def run_one(name: str, plan: FuzzPlan, made: "Queue[Verdict | Checkpoint]") -> None:
    """What is made is told at once: a process that is stopped takes nothing with it."""
    for each in whole_target(fuzzer_named(name), plan, lambda target, text: None):
        made.put(each)
