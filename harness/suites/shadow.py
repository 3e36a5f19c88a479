"""Comparison of the oracle's own graph with our ops. Each result must follow from the op's
inputs."""

from collections.abc import Iterator
from functools import partial

from lockstep.engine.ops.build import Build
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.processes.ahead import LATER, Ahead, may_fork
from lockstep.harness.records import Rejected, Unanswerable, Verdict
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.shadow.nodes import capture
from lockstep.harness.shadow.verdicts import SUITE, Said, all_seen, verdicts_of


class Shadow(Suite, name=SUITE):
    order = 80
    of_oracle_alone = True

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def begin(self, context: Context) -> None:
        """Judge a large model in a fork with an oracle of its own, because other questions leave
        processors idle."""
        another = None if context.facts.is_small else context.oracle.another()
        if another is not None and may_fork():
            context.begun[SUITE] = Ahead(partial(said_ahead, context, another), behind=LATER)

    def run(self, context: Context) -> Iterator[Verdict]:
        begun = context.begun.pop(SUITE, None)
        said = begun.result() if isinstance(begun, Ahead) else said_of(context, context.oracle)
        for status, text, detail, key in said:
            yield context.verdict(SUITE, status, text, detail, key)


def said_ahead(context: Context, oracle: Session) -> list[Said]:
    with oracle:
        return list(said_of(context, oracle))


def said_of(context: Context, oracle: Session) -> Iterator[Said]:
    """Yield verdicts on the oracle's own graph. There is nothing to judge if the oracle shows no
    graph."""
    settings = context.settings
    build = Build(lanes=context.lanes, n_threads=settings.n_threads, generic=settings.generic)
    judge = ShadowJudge(context.file, build)
    outcome = capture(oracle, judge, context.batches)
    if isinstance(outcome, Unanswerable):
        yield "excused", f"{oracle.name} shows no graph to recompute: {outcome.message}", {}, ()
        return
    if isinstance(outcome, Rejected):
        yield "not-compared", f"{oracle.name} refuses the model: {outcome.message}", {}, ()
        return
    context.answer(oracle, "capture", outcome)
    yield from verdicts_of(judge, lambda *said: said)
    if wrong := all_seen(judge, outcome):
        yield "not-compared", wrong, {}, ()
