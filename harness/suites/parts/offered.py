"""Verdicts on questions that an engine does not offer."""

from lockstep.harness.context.suite import NO_MEMORY, Context
from lockstep.harness.records import Status, Verdict


def not_offered(context: Context, level: str, suite: str) -> list[Verdict] | None:
    """Return the verdicts on a level that the engine lacks; None if the engine has the level."""
    levels = context.subject_info.levels
    if levels is not None and level in levels:
        return None
    if not context.named and (levels is None or "logits" in levels):
        return []  # its logits show more
    text = f"{context.subject.name} does not offer {level}"
    status: Status = "not-compared" if context.named else "not-applicable"  # the user asked for it
    return [context.verdict(suite, status, text)]


def not_asked_of_sessions(
    context: Context, level: str, suite: str, lacks: str
) -> list[Verdict] | None:
    """Return the verdicts that replace questions about sessions; None if the questions can be
    asked. An engine that declares no levels is asked only if the user names the suite. lacks: the
    sentence for a model without a memory of tokens."""
    levels = context.subject_info.levels
    lacking = None if levels is None else not_offered(context, level, suite)
    if lacking is not None or not (context.named or levels):
        return lacking or []
    if context.facts.decoder_start is not None or context.facts.architecture in NO_MEMORY:
        return [context.verdict(suite, "not-applicable", lacks)]
    return None
