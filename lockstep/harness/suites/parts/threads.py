"""What is said of an engine that is right with one thread, as blackbox.several_threads asks."""

from lockstep.harness.context.suite import Context
from lockstep.harness.records import Verdict


def ask_several_threads(
    context: Context, same: list[str], unanswered: list[str], wrong: list[Verdict]
) -> None:
    """Adds to what is the same, to what is not compared and why, or to what differs."""
    if "logits" not in context.on_made_models:
        return
    for verdict in context.asked_on_made_models("logits"):
        if verdict.status == "agreed":
            same.append(verdict.detail["asked"])
        elif verdict.status == "not-applicable":
            unanswered.append(verdict.summary)
        else:
            wrong.append(verdict)
