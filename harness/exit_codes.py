"""The exit code of a command, from the verdicts of its run."""

from collections.abc import Sequence

from lockstep.harness.records import BOTH, REFUSED, Verdict


class BadInput(Exception):
    """Error: the request cannot be carried out because of a usage or configuration error. Exit code
    2."""


def exit_code_of_run(verdicts: Sequence[Verdict]) -> int:
    """Return the worst exit code of all models. A model for which nothing was compared gets exit
    code 3, unless the engine may refuse this model."""
    cases: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        cases.setdefault(verdict.case, []).append(verdict)
    taken = [same for same in cases.values() if not all(v.detail.get("optional") for v in same)]
    codes = {exit_code(same) for same in taken} or {3}
    return next(code for code in (1, 2, 3, 0) if code in codes)


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 0 for conform, 1 for divergence, 2 for a defect of Lockstep, 3 for incomplete. If
    nothing was compared, the run is incomplete. If some verdicts are about both engines, at least
    one of these must agree for the run to conform."""
    found = {v.status for v in verdicts}
    of_subject = [v for v in verdicts if v.about == BOTH] or verdicts
    if "diverged" in found:
        return 1
    if "internal" in found:
        return 2
    if found & {"crashed", "timed-out", "malformed", "not-compared"}:
        return 3
    return 0 if any(map(is_compared, of_subject)) else 3


def is_compared(verdict: Verdict) -> bool:
    """Return True if the verdict is evidence about the engine. A divergence that the user lists as
    known counts as compared, unless the engine refused. A tie is not evidence."""
    listed = verdict.status == "excused" and "listed" in verdict.detail
    listed = listed and verdict.detail.get("kind") != REFUSED
    return listed or verdict.status == "agreed"
