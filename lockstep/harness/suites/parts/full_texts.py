"""The text of an engine, of as many tokens as it writes."""

from lockstep.harness.context.further_runs import LeftOut
from lockstep.harness.context.suite import Context
from lockstep.harness.records import Answered, Rejected, Unanswerable


def said_in_full(context: Context, prompt: bytes, n: int) -> tuple[int, bytes, LeftOut | None]:
    """Of how many tokens a text the subject writes, and why of no more: a server may have a limit,
    or a context with no room for so many. Who refuses to write one token refuses the prompt.
    Raises NoAnswer."""
    first = outcome = context.subject.ask("generate", prompt, n)
    taken = n
    while isinstance(outcome, Unanswerable | Rejected) and taken > 1:
        taken //= 2
        outcome = context.subject.ask("generate", prompt, taken)
    if taken == n or not isinstance(outcome, Answered):
        return n, context.answer(context.subject, "generate", first), None
    assert isinstance(first, Unanswerable | Rejected)
    what = f"the text behind its first {taken} tokens (--steps {taken} asks for no more)"
    return taken, outcome.value, LeftOut.of(what, first)
