"""Questions to two engines at the same time, and the rule for asking one engine again alone."""

from collections.abc import Callable
from functools import partial
from time import monotonic

from lockstep.harness.processes.ahead import at_once
from lockstep.harness.records import Outcome, TimedOut

# Share of a time limit. An engine that shared the processors for a smaller part of the limit had
# nearly all of it alone, so another wait of the same length would not help.
HARDLY = 0.1


def asked_beside(
    oracle: Callable[[], Outcome], subject: Callable[[], Outcome]
) -> tuple[Outcome, Outcome]:
    """Ask both engines at the same time. An engine that timed out while the other was also busy is
    asked again alone, because the limit applies to an engine that runs alone."""
    (first, beside_subject), (second, beside_oracle) = at_once(
        partial(time_question, oracle), partial(time_question, subject)
    )
    if isinstance(first, TimedOut) and beside_oracle > HARDLY * first.seconds:
        first = oracle()
    if isinstance(second, TimedOut) and beside_subject > HARDLY * second.seconds:
        second = subject()
    return first, second


def time_question(ask: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """Ask a question. Return its answer and the seconds that it took."""
    began = monotonic()
    return ask(), monotonic() - began
