"""What an engine does not answer costs that question, and not the others behind it.

A wait in vain is as long as the time limit, so that nothing is asked for which waiting is hopeless.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.engine.batch import Batch
from lockstep.harness.context.suite import Context, NoAnswer, patient
from lockstep.harness.records import Outcome, TimedOut, Verdict

MOST = 2  # waits of one suite: who hangs whatever is asked costs no more of them


@dataclass(kw_only=True)
class Waits:
    """Of the runs of one suite."""

    tokens: list[int] = field(default_factory=list)  # of the runs that were waited for in vain

    def why_none(self, words: str, batches: Sequence[Batch]) -> str:
        """Why it is not asked; "": it is. Who needs too long for some tokens does so for more."""
        if len(self.tokens) >= MOST:
            return f"{words}: not asked, as {MOST} runs before were not answered in time"
        shortest = min(self.tokens, default=0)
        if self.tokens and n_tokens(batches) >= shortest:
            return f"{words}: not asked, as {shortest} tokens were not answered in time"
        return ""

    def verdict(
        self, context: Context, suite: str, words: str, batches: Sequence[Batch], outcome: Outcome
    ) -> Verdict | None:
        """Of a run that the subject did not answer; None: it did. words: which one."""
        try:
            context.answer(context.subject, f"evaluate {words}", outcome)
        except NoAnswer as failed:
            if isinstance(outcome, TimedOut):
                self.tokens.append(n_tokens(batches))
            error = patient(failed)
            detail = {**error.detail, "asked": words}
            return context.verdict(
                suite, error.status, error.summary, detail, (suite, error.status)
            )
        return None


def n_tokens(batches: Sequence[Batch]) -> int:
    return sum(map(len, batches))
