"""The interface of a fuzzer, and a campaign that turns a plan into a report folder and an exit
code."""

import importlib
import json
import pkgutil
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported
from lockstep.engine.registry import Registered
from lockstep.harness import fuzzers
from lockstep.harness.adapters.parts.users import is_users
from lockstep.harness.asking.environments import provide
from lockstep.harness.check.check import BadInput, describe_engine
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.parallel.children import Done, Said, Say, raise_for
from lockstep.harness.parallel.works import Executor, events_of
from lockstep.harness.records import EXACT, EngineInfo, Settings, StageText, Verdict
from lockstep.harness.report.header import header
from lockstep.harness.report.jsonl import ReportWriter, plain
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.run import Listener, run_folder
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.llama import write_llama

Progress = Callable[[str, str], None]  # arguments: target, text


@dataclass(frozen=True, kw_only=True)
class FuzzPlan:
    """The plan of a campaign. Case n depends only on the seed, the target and n, so a later run can
    continue at `start`.

    `seconds` limits the time of each target. No verdict covers cases that the run did not reach,
    and the verdicts say where the next run starts. `given` are the user's own cases, which replace
    the numbered ones.
    """

    targets: tuple[str, ...] = ()  # names from the fuzzer's list; empty: all
    engine: str = "reference"
    oracle: str = "llama.cpp"
    cases: int = 1_000_000  # number of cases for each target
    start: int = 0
    seconds: float | None = None
    seed: int = 0
    given: tuple[bytes, ...] = ()
    files: tuple[Path, ...] = ()  # the same for fuzzers that take whole files
    corpus: Path | None = None  # folder of initial files, for fuzzers that mutate files
    witness: bool = True  # True: a third engine is asked too, if the fuzzer has one
    keep: Path | None = None  # folder for interesting files, for fuzzers that keep files
    found: tuple[str, ...] = ()  # keys of findings that are already reported
    settings: Settings = EXACT
    time_limit: float = 300.0
    memory_limit: int = 8 << 30

    def runner(self) -> Runner:
        return Runner(time_limit=self.time_limit, memory_limit=self.memory_limit)

    def open(self, name: str, stack: ExitStack) -> Session:
        """Open an engine without a model until the stack closes. A user's Python class still gets
        the path of a small model, because its `__init__` may load one."""
        model = None
        if is_users(name):
            folder = stack.enter_context(TemporaryDirectory(prefix="lockstep-"))
            model = Path(folder) / "model.gguf"
            write_llama(BUILTIN["f32"], model)
        return stack.enter_context(self.runner().open(name, model, self.settings))

    def command(self, fuzzer: str, target: str, *options: str) -> str:
        """Return the command that shows a finding again. options: the words that select the
        case."""
        words = ["lockstep", "fuzz", fuzzer, "--type", target, "--engine", self.engine]
        words += [] if self.oracle == "llama.cpp" else ["--oracle", self.oracle]
        return shlex.join([*words, *options])


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A sign that all verdicts on a target's cases before `done` have been given."""

    target: str
    done: int


class Fuzzer(Registered):
    """Asks two engines about an endless series of cases. `targets` are the parts that can run
    alone."""

    def targets(self) -> list[str]:
        raise NotImplementedError

    def check(self, plan: FuzzPlan) -> None:
        """Check the plan. Raises BadInput if this fuzzer cannot run it."""
        for name in plan.targets:
            if name not in self.targets():
                known = choices(name, self.targets())
                raise BadInput(f"fuzz {self.name} has no target {name!r} {known}")

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict | Checkpoint]:
        """Yield verdicts for each target, at least one, together with the cases that they cover. A
        checkpoint follows each target. A stopped run continues after the last checkpoint
        (harness.fuzzers.resume)."""
        raise NotImplementedError


def fuzzer_named(name: str) -> Fuzzer:
    """Return the fuzzer with that name. The file with that name is tried first, because a worker
    needs no other."""
    packages = [each.name for each in pkgutil.iter_modules(fuzzers.__path__) if each.ispkg]
    for each in [name] if name in packages else packages:
        importlib.import_module(f"{fuzzers.__name__}.{each}.fuzzer")
    return Fuzzer.member(name)()


def run_campaign(
    name: str,
    plan: FuzzPlan,
    reports: Path,
    command: Sequence[str],
    executor: Executor | None = None,
    listener: Listener | None = None,
) -> RunResult:
    """Run a campaign, and return its result. Each verdict is on disk before the next one is made.
    Raises BadInput before any work."""
    listener = listener or Listener()
    fuzzer = fuzzer_named(name)
    fuzzer.check(plan)
    engines = engines_of(plan, lambda text: listener.progress(f"fuzz {name}", text))
    folder = run_folder(reports, f"fuzz-{name}")
    about = header(shlex.join(command), plan.seed, (), engines)
    writer = ReportWriter(folder, {**about, "campaign": campaign_row(fuzzer, plan)})
    each = [replace(plan, targets=(target,)) for target in plan.targets or fuzzer.targets()]
    return write_run(fuzzer, each, writer, engines, executor, listener)


def write_run(
    fuzzer: Fuzzer,
    plans: Sequence[FuzzPlan],
    writer: ReportWriter,
    engines: tuple[EngineInfo, ...],
    executor: Executor | None,
    listener: Listener,
    before: Sequence[Verdict] = (),
) -> RunResult:
    """Write the remaining verdicts of the campaign, and return the result. before: verdicts that
    the report already has."""
    started = time.perf_counter()
    verdicts, told = list(before), {as_text(verdict) for verdict in before}
    with closing(writer), told_how_to_go_on(fuzzer, writer.path.parent):
        for made in stream_of(fuzzer, plans, executor, listener):
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
    except ChildProcessError as error:
        text = f"{error}; the system may have run out of memory"
        again = shlex.join(["lockstep", "fuzz", fuzzer.name, "--resume", str(folder)])
        raise ChildProcessError(f"{text}; continue with {again}") from error


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
            opened = [plan.open(name, stack) for name in names]
        except Unsupported as error:
            raise BadInput(str(error)) from error
        return tuple(describe_engine(session) for session in opened)


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
    fuzzer: Fuzzer, plans: Sequence[FuzzPlan], executor: Executor | None, listener: Listener
) -> Iterator[Verdict | Checkpoint]:
    """Yield the verdicts of all targets. With an executor, each target is separate work; otherwise
    the targets run here, in order."""
    if executor is None:
        for plan in plans:
            yield from whole_target(fuzzer, plan, listener.progress)
            listener.progress(plan.targets[0], StageText("done"))
        return
    works = [TargetWork(fuzzer=fuzzer.name, plan=plan) for plan in plans]
    for number, event in events_of(executor, works, files_of(plans)):
        match event:
            case Said(made):
                yield made
            case Done():
                listener.progress(plans[number].targets[0], StageText("done"))
            case _:
                raise_for(event)


def files_of(plans: Sequence[FuzzPlan]) -> list[Path]:
    some = [path for plan in plans for path in (*plan.files, plan.corpus, plan.keep) if path]
    return list(dict.fromkeys(some))


@dataclass(frozen=True, kw_only=True)
class TargetWork:
    """One target of a campaign, as work for a separate process.

    Findings are reported at once, so that nothing is lost if the process is stopped.
    """

    fuzzer: str
    plan: FuzzPlan

    def __call__(self, say: Say) -> None:
        for made in whole_target(fuzzer_named(self.fuzzer), self.plan, lambda target, text: None):
            say(made)

    def is_checkpoint(self, made: Any) -> bool:
        return isinstance(made, Checkpoint)

    def behind(self, made: Sequence[Any]) -> "TargetWork":
        """Return the remaining work, given what it has yielded so far. Its plan has no cases if
        nothing is left."""
        done = [each.done for each in made if isinstance(each, Checkpoint)]
        keys = [each.key for each in made if isinstance(each, Verdict)]
        return replace(self, plan=rest_of(self.plan, done, keys))


def rest_of(plan: FuzzPlan, done: Sequence[int], keys: Sequence[str]) -> FuzzPlan:
    """Return the plan for the cases of a target after its last checkpoint. keys: the keys of the
    target's findings so far."""
    start = done[-1] if done else plan.start
    found = tuple(dict.fromkeys((*plan.found, *filter(None, keys))))
    return replace(plan, start=start, cases=plan.start + plan.cases - start, found=found)


def whole_target(
    fuzzer: Fuzzer, plan: FuzzPlan, progress: Progress
) -> Iterator[Verdict | Checkpoint]:
    said = -1
    for made in fuzzer.run(plan, progress):
        said = made.done if isinstance(made, Checkpoint) else said
        yield made
    if said < 0:
        yield Checkpoint(target=plan.targets[0], done=plan.start + plan.cases)
