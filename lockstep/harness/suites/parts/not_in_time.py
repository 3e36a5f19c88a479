"""What an engine does not answer in time costs that question, and not the shorter ones behind it.

Each wait is as long as the time limit, so that nothing is asked for which waiting is hopeless.
"""

from dataclasses import dataclass, field

from lockstep.harness.context.further_runs import FurtherRun
from lockstep.harness.context.suite import Context, no_answer, patient
from lockstep.harness.records import TimedOut, Verdict

MOST = 2  # waits of one suite: who hangs whatever is asked costs no more of them


@dataclass(kw_only=True)
class Waits:
    """Of the runs of one suite."""

    tokens: list[int] = field(default_factory=list)  # of the runs that were waited for in vain

    def why_none(self, run: FurtherRun) -> str:
        """Why it is not asked; "": it is. Who needs too long for some tokens does so for more."""
        if len(self.tokens) >= MOST:
            return f"{run.words}: not asked, as {MOST} runs before were not answered in time"
        shortest = min(self.tokens, default=0)
        if self.tokens and n_tokens(run) >= shortest:
            return f"{run.words}: not asked, as {shortest} tokens were not answered in time"
        return ""

    def verdict(self, context: Context, suite: str, run: FurtherRun, outcome: TimedOut) -> Verdict:
        """Of a run that the subject did not answer."""
        self.tokens.append(n_tokens(run))
        error = patient(no_answer(context.subject.name, f"evaluate {run.words}", outcome))
        detail = {**error.detail, "asked": run.words}
        return context.verdict(suite, error.status, error.summary, detail, (suite, error.status))


def n_tokens(run: FurtherRun) -> int:
    return sum(map(len, run.batches))
