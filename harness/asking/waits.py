"""Questions that an engine does not answer in time: their length, the option that shortens them,
and the runs that Lockstep does not repeat."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.engine.batch import Batch
from lockstep.harness.records import TimedOut

MOST = 2  # number of waits for a run; the first may have met a busy machine
AGAIN = f"this run was already asked for {MOST} times"
OF_BATCHES = ("evaluate", "embed")
OF_TEXT = ("greedy", "generate")
Run = tuple[bytes, ...]


def n_tokens(question: str, args: Sequence[Any]) -> int:
    """Return the number of tokens that an engine computes for the answer. Return 0 if it computes
    none, or if the number is unknown."""
    if question == "evaluate":
        return sum(map(len, args[0].batches))
    if question == "greedy":
        return len(args[0]) + int(args[1])
    return int(args[1]) if question == "generate" else 0


def option_for_less(question: str, tokens: int) -> str:
    """Return the command-line option that makes the question smaller; "" if there is none.
    `question` includes its details."""
    name = question.split(" ")[0]
    if name in OF_TEXT and tokens:
        return "--steps"
    return "--tokens" if name in (*OF_BATCHES, "logprobs", "capture") else ""


@dataclass
class InVain:
    """The runs of one engine and model that timed out. Runs are the same even if one request also
    asks for tensors."""

    late: dict[Run, list[TimedOut]] = field(default_factory=dict)

    def known_wait(self, question: str, args: Sequence[Any]) -> TimedOut | None:
        """Return the expected timeout of this question, if the same run has timed out often enough;
        else None."""
        found = self.late.get(run_of(args[0].batches), []) if question == "evaluate" else []
        return replace(found[-1], note=AGAIN) if len(found) >= MOST else None

    def add(self, question: str, args: Sequence[Any], outcome: TimedOut) -> TimedOut:
        """Add the question's length to the outcome, remember it, and return it."""
        found = replace(outcome, tokens=n_tokens(question, args))
        if question == "evaluate":
            self.late.setdefault(run_of(args[0].batches), []).append(found)
        return found


def run_of(batches: Sequence[Batch]) -> Run:
    arrays = ((b.tokens, b.positions, b.seq_ids, b.outputs) for b in batches)
    return tuple(array.tobytes() for every in arrays for array in every)
