"""Is what only long texts show right: where windows end, the factors of long contexts?"""

from collections.abc import Iterator

from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.records import Verdict


class LongContext(Suite, name="long-context"):
    order = 41
    expected = False

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        """As harness.blackbox.long_context says."""
        yield from context.asked_on_made_models("long-context")
