"""JUnit XML, in the form that Jenkins' xunit plugin reads and that Surefire and pytest write.

There is a suite for each model. `diverged` is a failure. A comparison that was impossible is an
error, because it changes the exit code. `excused` and `not-applicable` are skipped, with the
reason.
"""

from junitparser import Error, Failure, Skipped
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from lockstep.harness.report.formats.results import FAILED, SKIPPED, RunResults, TestResult

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'


def junit(run: RunResults) -> str:
    document = JUnitXml("lockstep")
    models: dict[str, list[TestResult]] = {}
    for result in run.results:
        models.setdefault(result.model, []).append(result)
    for model, results in models.items():
        document.append(suite_of(model, results, run))
    document.update_statistics()
    # set after the statistics, because verdicts have no duration
    document.time = round(run.seconds, 3)
    text: bytes = document.tostring()
    return f"{DECLARATION}{text.decode()}\n"


def suite_of(model: str, results: list[TestResult], run: RunResults) -> TestSuite:
    suite = TestSuite(model)
    suite.timestamp = run.started.replace(tzinfo=None).isoformat(timespec="seconds")
    suite.add_property("command", run.command)
    suite.add_property("seed", str(run.seed))
    roles = ("oracle", "engine under test") if len(run.engines) == 2 else ("engine",) * 9
    for role, engine in zip(roles, run.engines, strict=False):
        suite.add_property(role, engine)
    for name, version in run.versions.items():
        suite.add_property(f"version {name}", version)
    for result in results:
        suite.append(case_of(result))  # the statistics are computed at the end
    return suite


def case_of(result: TestResult) -> TestCase:
    case = TestCase(result.name, f"{result.model}.{result.suite}")
    if result.status in FAILED:
        case.result = [Failure(result.summary, result.key or result.status)]
    elif result.status in SKIPPED:
        case.result = [Skipped(f"{result.status}: {result.summary}", result.status)]
    elif result.is_red:
        case.result = [Error(f"{result.status}: {result.summary}", result.status)]
    if result.is_red:
        case.result[0].text = result.explanation
    return case
