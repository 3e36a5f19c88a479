"""Of an engine without tensors: is its graph right where nothing is converted, is each weight?"""

from collections.abc import Iterator

from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.records import Verdict


class BlackBox(Suite, name="black-box"):
    order = 55
    expected = False

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        """As harness.blackbox.in_check says."""
        yield from context.asked_on_made_models("black-box")
