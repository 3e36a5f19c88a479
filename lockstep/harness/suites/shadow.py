"""Is every op of the oracle's own graph what its own inputs say?"""

from collections.abc import Iterator

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.ops.build import Build
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.records import Rejected, Unanswerable, Verdict
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.shadow.nodes import capture
from lockstep.harness.shadow.verdicts import SUITE, all_seen, verdicts_of


class Shadow(Suite, name=SUITE):
    order = 80
    of_oracle_alone = True

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        """It judges the oracle, so an oracle that shows no graph leaves nothing to do."""
        settings = context.settings
        build = Build(lanes=context.lanes, n_threads=settings.n_threads, generic=settings.generic)
        with open_model(context.model) as file:
            judge = ShadowJudge(file, build)
            outcome = capture(context.oracle, judge, context.batches)
            if isinstance(outcome, Unanswerable):
                text = f"{context.oracle.name} shows no graph to recompute: {outcome.message}"
                yield context.verdict(SUITE, "excused", text)
                return
            if isinstance(outcome, Rejected):
                text = f"{context.oracle.name} refuses the model: {outcome.message}"
                yield context.verdict(SUITE, "not-compared", text)
                return
            context.answer(context.oracle, "capture", outcome)
            yield from verdicts_of(judge, lambda s, t, d, k: context.verdict(SUITE, s, t, d, k))
            if wrong := all_seen(judge, outcome):
                yield context.verdict(SUITE, "not-compared", wrong)
