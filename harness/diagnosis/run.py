"""A diagnosis as a task for another process."""

from contextlib import closing
from dataclasses import replace

from lockstep.harness.check.check import Plan
from lockstep.harness.diagnosis.diagnosis import DiagnosisBench, diagnose
from lockstep.harness.parallel.children import Say
from lockstep.harness.runs.run import opened_for


def diagnose_one(plan: Plan, say: Say) -> None:
    """Diagnose one engine. Send progress messages and intermediate results with `say`, and at the
    end the Diagnosed."""
    with (
        closing(opened_for(plan, say)) as opened,
        closing(DiagnosisBench.of(opened.context)) as bench,
    ):
        say(replace(diagnose(opened.context, bench, say), engines=opened.engines))
