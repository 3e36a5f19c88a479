"""The pytest plugin: checks of a user's engine within the user's own repository.

    pytest --lockstep-engine "./my-engine --threads 1" --lockstep-model model.gguf -n auto

There is one test for each model and suite. pytest loads this file wherever Lockstep is installed,
so it imports no slow modules before a test runs.
"""

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

SUITES = (  # the suites of check, except shadow, which is only about the oracle
    *(
        "metadata",
        "tokens",
        "dequant",
        "logits",
        "long-context",
        "logprobs",
        "embeddings",
    ),
    *("states", "guidance", "decode"),
    *("text", "samplers", "black-box", "acid", "trace", "products"),
)
OUTPUT = "lockstep report"  # property of a test with the folder of its run
SUMMARY = "lockstep summary"
KEPT = pytest.StashKey[ExitStack]()  # kept until the session ends


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "conformance of GGUF engines")
    group.addoption(
        "--lockstep-engine",
        metavar="CMD",
        help="The engine under test: a command, or any value of lockstep check --engine.",
    )
    group.addoption(
        "--lockstep-model",
        metavar="FILE",
        action="append",
        default=[],
        help="A GGUF file to check the engine on (repeatable).",
    )
    group.addoption(
        "--lockstep-settings",
        metavar="PRESET|KEY=VALUE,...|FILE",
        help="Settings of llama.cpp, as for lockstep check. [exact; default for servers]",
    )
    group.addoption(
        "--lockstep-suite",
        metavar="NAME",
        action="append",
        default=[],
        help=f"Only this suite (repeatable): {', '.join(SUITES)}.",
    )
    group.addoption(
        "--lockstep-known",
        metavar="FILE",
        help="Pass the divergences in this file (lockstep check --write-known FILE writes one).",
    )
    group.addoption(
        "--lockstep-timeout",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="Seconds the engine may take to start, and for each answer. [300]",
    )
    group.addoption(
        "--lockstep-report",
        metavar="FOLDER",
        default="reports",
        help="The folder for reports; each session makes a folder in it. [reports]",
    )


def pytest_configure(config: pytest.Config) -> None:
    from lockstep.harness.redaction import keep_secret_options

    keep_secret_options([config.getoption("--lockstep-engine") or ""])
    # set by the process that started this one
    told = getattr(config, "workerinput", {}).get(OUTPUT)
    reports = Path(config.getoption("--lockstep-report"))
    folder = Path(told) if told else reports / f"{datetime.now():%Y%m%d-%H%M%S}-pytest"
    config.pluginmanager.register(PluginSummary(folder), SUMMARY)
    if config.getoption("--lockstep-model") and not config.getoption("--lockstep-engine"):
        raise pytest.UsageError(
            "--lockstep-model needs --lockstep-engine: name the engine to check"
        )
    if config.getoption("--lockstep-engine") and not config.getoption("--lockstep-model"):
        raise pytest.UsageError("--lockstep-engine needs --lockstep-model: a GGUF file")
    for name in config.getoption("--lockstep-suite"):
        if name not in SUITES:
            raise pytest.UsageError(f"no suite named {name!r} (known: {', '.join(SUITES)})")
    if settings := config.getoption("--lockstep-settings"):
        check_settings(settings)
    for path in config.getoption("--lockstep-model"):
        if not Path(path).is_file():
            raise pytest.UsageError(f"--lockstep-model {path}: no such file")


def check_settings(text: str) -> None:
    """Refuse settings that `check` would refuse. Raises UsageError."""
    from lockstep.harness.check.settings import settings_named
    from lockstep.harness.exit_codes import BadInput

    try:
        settings_named(text)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error


def pytest_unconfigure(config: pytest.Config) -> None:
    if KEPT in config.stash:
        config.stash[KEPT].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all workers of pytest-xdist the same report folder."""
    node.workerinput[OUTPUT] = str(folder_of_session(node.config))


def folder_of_session(config: pytest.Config) -> Path:
    summary = config.pluginmanager.get_plugin(SUMMARY)
    assert isinstance(summary, PluginSummary)
    return summary.folder


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add our tests to the collected tests. Our tests belong to no file."""
    for path in config.getoption("--lockstep-model"):
        for suite in config.getoption("--lockstep-suite") or SUITES:
            name = f"lockstep[{Path(path).name}-{suite}]"
            items.append(SuiteItem.from_parent(session, name=name, model=Path(path), suite=suite))


class SuiteItem(pytest.Item):
    """The test of one suite on one model."""

    def __init__(self, *, model: Path, suite: str, **of_pytest: Any) -> None:
        super().__init__(**of_pytest)
        self.model, self.suite = model, suite

    def runtest(self) -> None:
        asked = bool(self.config.getoption("--lockstep-suite"))
        check_with(self.config, self.model, suites=(self.suite,), note=self.note, by_name=asked)

    def note(self, folder: str) -> None:
        self.user_properties.append((OUTPUT, folder))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return Lockstep's message, without the traceback of the code that raises it."""
        if excinfo.errisinstance(pytest.fail.Exception):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.model, None, self.name


def check_with(
    config: pytest.Config,
    model: Path,
    *,
    engine: str | None = None,
    suites: tuple[str, ...] = (),
    note: Callable[[str], None] = lambda _: None,
    **of_plan: Any,
) -> Any:
    """Check a model, and return the run (runs.result.RunResult). Fail the test on differences, and
    skip it if nothing applies."""
    from lockstep.harness.asking.template import keep_template
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.redaction import redact
    from lockstep.harness.report.text import explain
    from lockstep.harness.runs.check_model import check_model, plan_for_model

    engine = engine or config.getoption("--lockstep-engine")
    if not engine:
        pytest.fail("no engine: pass one, or --lockstep-engine", pytrace=False)
    settings = config.getoption("--lockstep-settings")
    of_plan = {"time_limit": config.getoption("--lockstep-timeout")} | of_plan
    if KEPT not in config.stash:  # kept, because otherwise each test would start llama.cpp
        config.stash[KEPT] = ExitStack()
        config.stash[KEPT].enter_context(keep_template())
    try:
        reports = folder_of_session(config) / "-".join((model.name, *suites))
        listed = config.getoption("--lockstep-known")
        plan = plan_for_model(model, engine, settings=settings, suites=suites, **of_plan)
        result = check_model(
            plan,
            reports,
            known=Path(listed) if listed else None,
            command=["pytest", *shlex.split(plan.command)],
        )
    except BadInput as error:
        pytest.fail(redact(str(error)), pytrace=False)
    note(str(result.folder))
    said = [explain(v) for v in result.verdicts if v.status not in ("agreed", "excused")]
    applies = {v.status for v in result.verdicts} - {"not-applicable"}
    if not applies:
        why = "; ".join(v.summary for v in result.verdicts) or "the suite does not apply"
        pytest.skip(redact(why))
    if result.code:
        text = "\n\n".join([*said, *result.next_step.splitlines(), f"report: {result.folder}"])
        pytest.fail(redact(text), pytrace=False)
    return result


@pytest.fixture
def lockstep(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function: lockstep(model, engine=None, suites=(), **fields of
    harness.check.check.Plan)."""

    def check(model: str | Path, **options: Any) -> Any:
        def note(folder: str) -> None:
            request.node.user_properties.append((OUTPUT, folder))

        return check_with(request.config, Path(model), note=note, **options)

    return check


class PluginSummary:
    """Prints the folders of the reports and the reasons for skipped tests at the end. With xdist
    the workers send them.

    If all our tests were skipped, nothing was compared. This is not a success.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # folder of the session's runs
        self.outcomes: set[str] = set()
        self.skipped: dict[str, list[str]] = {}  # reason -> tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or OUTPUT not in dict(report.user_properties):
            return
        self.outcomes.add(report.outcome)
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self.skipped.setdefault(reason, []).append(report.nodeid.rpartition("::")[2])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.outcomes == {"skipped"} and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.outcomes:
            terminalreporter.section("lockstep")
            for reason, tests in self.skipped.items():
                terminalreporter.line(f"skipped {', '.join(tests)}: {reason}")
            terminalreporter.line(f"reports: {self.folder}/*/*/report.jsonl")
        if self.outcomes == {"skipped"}:
            terminalreporter.line("every test was skipped: nothing was compared")
