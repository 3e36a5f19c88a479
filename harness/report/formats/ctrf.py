"""CTRF, the Common Test Report Format: a JSON format for all test frameworks.

`diverged`, `crashed` and similar statuses are `failed`. `not-compared` is `other`, because it is
neither failed, passed nor skipped on purpose. `excused` and `not-applicable` are `skipped`.
`rawStatus` holds our own status.
"""

import json
from collections import Counter
from typing import Any

from lockstep.harness.report.formats.results import PASSED, RUN, SKIPPED, RunResults, TestResult

SPECIFICATION = "0.0.0"
STATUSES = ("passed", "failed", "skipped", "pending", "other")


def ctrf(run: RunResults) -> str:
    start = round(run.started.timestamp() * 1000)  # milliseconds since 1970-01-01 in UTC
    duration = round(run.seconds * 1000)
    counts = Counter(map(status_of, run.results))
    document = {
        "reportFormat": "CTRF",
        "specVersion": SPECIFICATION,
        "generatedBy": "gguf-lockstep",
        "results": {
            "tool": {"name": "lockstep", "version": run.versions.get("gguf-lockstep", "")},
            "summary": {
                "tests": len(run.results),
                **{status: counts[status] for status in STATUSES},
                "suites": len({(result.model, result.suite) for result in run.results}),
                "start": start,
                "stop": start + duration,
                "duration": duration,
                "extra": {"exitCode": run.exit_code},
            },
            "tests": [row_of(result) for result in run.results],
            "extra": {
                "command": run.command,
                "seed": run.seed,
                "engines": list(run.engines),
                "versions": dict(run.versions),
            },
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def row_of(result: TestResult) -> dict[str, Any]:
    row = {
        "name": result.name,
        "status": status_of(result),
        "rawStatus": result.status,
        "duration": 0,  # verdicts have no duration, but the format requires one
        "suite": [result.model, result.suite],
        "message": result.summary,
    }
    more = {"key": result.key, "repro": result.repro}
    row |= {"trace": result.explanation} if result.is_red else {}
    return row | ({"extra": {k: v for k, v in more.items() if v}} if any(more.values()) else {})


def status_of(result: TestResult) -> str:
    if result.status in PASSED:
        return "passed"
    if result.status in SKIPPED:
        return "skipped"
    # no format may report an unfinished run as passed
    return "other" if result.status == "not-compared" and result.suite != RUN else "failed"
