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
        """What is asked on models that are made of this one (harness.blackbox.in_check)."""
        if context.black_box is None:
            if context.named:
                text = "no models are made for it here; lockstep check and bisect make them"
                yield context.verdict("black-box", "not-applicable", text)
            return
        yield from context.black_box(context)
