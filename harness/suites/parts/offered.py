"""Verdicts on questions that an engine does not offer."""

from lockstep.harness.context.suite import Context
from lockstep.harness.records import Status, Verdict


def not_offered(context: Context, level: str, suite: str) -> list[Verdict] | None:
    """Return the verdicts on a level that the engine lacks; None: the engine has it."""
    levels = context.subject_info.levels
    if levels is not None and level in levels:
        return None
    if not context.named and (levels is None or "logits" in levels):
        return []  # its logits say more
    text = f"{context.subject.name} does not offer {level}"
    status: Status = "not-compared" if context.named else "not-applicable"  # somebody wants it
    return [context.verdict(suite, status, text)]
