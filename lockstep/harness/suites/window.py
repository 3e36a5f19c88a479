"""Does attention end where the window ends, if that is longer than the usual run?"""

from collections.abc import Iterator

from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.records import Verdict


class WindowSuite(Suite, name="window"):
    order = 41
    expected = False

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        """As harness.blackbox.windows says."""
        yield from context.asked_on_made_models("window")
