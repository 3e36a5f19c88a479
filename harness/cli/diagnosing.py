"""Diagnoses within other commands, with their progress messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lockstep.harness.cli.diagnosis import aspect_lines, describe_difference
from lockstep.harness.runs.hints import smaller_model

if TYPE_CHECKING:
    from lockstep.harness.bisect.bisection import Bisection
    from lockstep.harness.check.check import Plan
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.diagnosis.diagnosis import Diagnosed
    from lockstep.harness.runs.result import RunResult


def run_diagnosis(plan: "Plan", out: "Terminal") -> "Diagnosed":
    from lockstep.harness.diagnosis.run import diagnose_one
    from lockstep.harness.parallel.children import result_of

    work, progress = partial(diagnose_one, plan), partial(out.progress, plan.case)
    found: Diagnosed = result_of(work, progress, Remarks(plan=plan, say=out.remark))
    return found


def diagnose_run(
    plans: "Sequence[Plan]", result: "RunResult", out: "Terminal"
) -> "list[tuple[Plan, Diagnosed]]":
    """Diagnose each model on which something diverged."""
    wrong = {verdict.case for verdict in result.verdicts if verdict.status == "diverged"}
    return [(plan, run_diagnosis(plan, out)) for plan in plans if plan.case in wrong]


def where_no_op_is_found(plan: "Plan", result: "Bisection", out: "Terminal") -> "Diagnosed | None":
    """Diagnose a wrong engine for which the bisection found no op; return None for other
    engines."""
    from lockstep.harness.bisect.bisection import NO_OP

    parts = result.first is None and result.exit_code in (1, NO_OP)
    return run_diagnosis(plan, out) if parts else None


@dataclass(kw_only=True)
class Remarks:
    """Prints the findings of a diagnosis as they come, and one remark if it takes long."""

    plan: "Plan"
    say: Callable[[str], None]
    warned: bool = False

    def __call__(self, told: Any) -> None:
        from lockstep.harness.diagnosis.diagnosis import Diagnosis
        from lockstep.harness.diagnosis.differences import Difference
        from lockstep.harness.diagnosis.pace import MINUTE_SECONDS, Estimate, describe_time

        match told:
            case Diagnosis():
                for line in aspect_lines(told):
                    self.say(f"found so far: {line.strip()}")
            case Difference():
                self.say(f"the first difference: {describe_difference(told)}")
            case Estimate(seconds=seconds) if seconds >= MINUTE_SECONDS and not self.warned:
                self.warned = True
                left = f"{self.plan.engine} needs about {describe_time(seconds)} more to answer"
                self.say(f"{left}; {smaller_model(self.plan)}")
