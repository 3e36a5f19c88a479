"""Suites on probe models, as in harness.blackbox.in_check."""

from collections.abc import Iterator

from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.records import Verdict


class OnMadeModels(Suite):
    expected = False

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        yield from context.asked_on_made_models(self.name)
        if self.name not in context.on_made_models and context.named:
            text = "this command makes no probe models; lockstep check and bisect do"
            yield context.verdict(self.name, "not-applicable", text)
