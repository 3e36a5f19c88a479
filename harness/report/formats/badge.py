"""A badge: JSON for the endpoint of shields, `https://img.shields.io/endpoint?url=...`."""

import json

from lockstep.harness.report.formats.results import FAILED, PASSED, RunResults

COLOURS = {0: "brightgreen", 1: "red", 2: "red", 3: "orange"}  # by exit code; None: unfinished


def badge(run: RunResults) -> str:
    document = {
        "schemaVersion": 1,
        "label": "lockstep",
        "message": words(run),
        "color": "lightgrey" if run.exit_code is None else COLOURS[run.exit_code],
        # shields then ignores a colour that the badge's user requests
        "isError": run.exit_code != 0,
    }
    return json.dumps(document) + "\n"


def words(run: RunResults) -> str:
    if run.exit_code is None:
        return "unfinished"
    if run.exit_code == 0:
        return f"{len(run.with_status(*PASSED))} agree"
    if run.exit_code == 1:
        return f"{len(run.with_status(*FAILED))} diverged"
    return "internal error" if run.exit_code == 2 else f"incomplete: {len(run.red)} not compared"
