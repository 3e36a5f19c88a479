"""A lower limit for the time that a check will take, estimated from an engine's first timed answer.
The estimate includes only runs that will certainly follow: the remaining runs of the same suite on
the model itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.asking.waits import n_tokens
from lockstep.harness.context.further_runs import further_runs, ids_of_narrow_integers, is_small
from lockstep.harness.context.relations import ways
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import Answered, Outcome
from lockstep.harness.suites.parts.next_tokens import MOST_BEGINNINGS

# Three times the duration of a check on the slowest model in README. Shorter waits need no warning,
# and the time of one slow answer predicts nothing.
LONG = 180.0
SUITES = {"evaluate": "logits", "greedy": "decode"}  # question -> the suite that asks it first


@dataclass(kw_only=True)
class Foretold:
    """Prints an estimate once, if the check will take long. `suites` are the suites that run; an
    empty tuple means all."""

    context: Context
    suites: Sequence[str]
    remark: Callable[[str], None]
    is_known: bool = False

    def __call__(self, question: str, args: Sequence[Any], outcome: Outcome) -> None:
        suite, n = SUITES.get(question, ""), n_tokens(question, args)
        if self.is_known or not (suite and n and isinstance(outcome, Answered)):
            return
        self.is_known = True
        if self.suites and suite not in self.suites:
            return
        each, left = outcome.seconds / n, still_to_come(self.context, question)
        if each * left > LONG:
            self.remark(
                f"{self.context.subject.name} took {outcome.seconds:.3g} s for {n} "
                f"tokens; suite {suite} asks this model for at least {left} more tokens, which "
                f"take about {each * left / 60:.0f} minutes. Other suites and probe "
                f"models take additional time. {what_takes_less(self.context)}"
            )


def what_takes_less(context: Context) -> str:
    fewer = "Fewer tokens: --tokens 2 --steps 2; fewer questions: --suite NAME; "
    if is_small(context.file):
        return f"{fewer}a smaller model: lockstep synth"
    return f"{fewer}its first layers: lockstep slice"


def still_to_come(context: Context, question: str) -> int:
    """Return the number of tokens in the remaining runs of the model itself, if no comparison
    differs. On a large model, most runs of `logits` use only its first layers, if the engine
    accepts such a model."""
    if question == "greedy":
        listed = "logprobs" in (context.subject_info.levels or ())
        n = min(context.n_tokens, MOST_BEGINNINGS)
        whole = listed or context.facts.decoder_start is not None
        return 0 if whole else n * (n + 1) // 2  # one token after each prefix
    small = is_small(context.file)
    others = [way.batches for way in ways(context) if small or way.capture]
    try:
        runs = list(further_runs(context)) if small else [ids_of_narrow_integers(context)]
    except NoAnswer:  # the size of the vocabulary is unknown
        runs = []
    # the first run is asked twice
    every = [context.batches, *others, *(run.batches for run in runs)]
    return sum(sum(map(len, batches)) for batches in every)
