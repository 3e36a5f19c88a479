"""Trials of damaged models: the verdict of `bisect` on each damaged copy.

The oracle runs the original model, and the subject runs a copy with one change. `bisect` is not
told the changed tensor or the architecture. A change that alters no bit of the subject's outputs
need not be found.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.check.check import REPLAY, BadInput, Plan, describe_engine, open_plan
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.damage.changes import Damage, damages, write_damaged
from lockstep.harness.graph.node_judge import OWN_WEIGHTS
from lockstep.harness.locate.nodes import record_program
from lockstep.harness.records import EngineInfo, Evaluation, Request, Settings, Status, Verdict
from lockstep.harness.shadow.known import known_crash

SUITE = "damage"
TOKENS = 8  # tokens of the prompt, each of which may show the change


@dataclass(frozen=True, kw_only=True)
class DamagePlan:
    """The variant from which a model is made, and the number of damages to try."""

    variant: str
    quant: str
    settings: Settings
    seed: int
    faults: int


@dataclass(kw_only=True)
class TriedChange:
    """The verdicts of one plan, small enough to send between processes."""

    variant: str
    verdicts: list[Verdict]
    engines: tuple[EngineInfo, ...] = ()


def model_path(plan: DamagePlan, folder: Path) -> Path:
    return folder / f"{plan.variant}.gguf"


def trials(plan: DamagePlan, folder: Path) -> TriedChange:
    """Return a verdict for each damage of the variant's model. `folder` contains the model."""
    path = model_path(plan, folder)
    case = f"synth:{plan.variant}"
    whole = Plan(
        case=case,
        model=path,
        subject_model=path,
        settings=plan.settings,
        engine=REPLAY,
        suites=("trace",),
        n_tokens=TOKENS,
        seed=plan.seed,
    )
    verdicts: list[Verdict] = []
    try:
        found = open_plan(whole, lambda _: None)
    except (BadInput, EngineError) as error:
        verdicts.append(verdict_of(plan, "not-compared", f"{case}: {error}"))
        return TriedChange(variant=plan.variant, verdicts=verdicts)
    context = found.context
    try:
        request = Request(
            batches=context.batches, embeddings=not record_program(context).has_result
        )
        right: Evaluation = context.ask(context.subject, "evaluate", request)
        for change in damages(path, plan.seed, plan.faults):
            verdicts.append(trial(plan, context, request, right, path, change))
    except NoAnswer as error:
        known = known_crash(plan.variant, plan.settings.name) if error.status == "crashed" else ""
        text = f"{case}: {error}" + (f" (known: {known})" if known else "")
        verdicts.append(verdict_of(plan, error.status, text, dict(error.detail)))
    except EngineError as error:
        verdicts.append(verdict_of(plan, "not-compared", f"{case}: {error}"))
    finally:
        found.close()
    return TriedChange(variant=plan.variant, verdicts=verdicts, engines=found.engines)


def trial(
    plan: DamagePlan,
    whole: Context,
    request: Request,
    right: Evaluation,
    path: Path,
    change: Damage,
) -> Verdict:
    """Run `bisect` on one damaged copy, and return the verdict. `right` is the engine's answer for
    the undamaged model."""
    damaged = path.with_name(f"{path.stem}-damaged.gguf")
    write_damaged(path, damaged, change)
    with Runner().open(REPLAY, damaged, whole.settings) as session:
        own: Evaluation = whole.ask(session, "evaluate", request)
        pairs = zip(right.logits, own.logits, strict=True)
        changed = not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
        bad = whole.with_subject(session, damaged, describe_engine(session))
        status, text, detail = ending_of(change, bisect(bad), changed)
    damage = asdict(change) | {"raw": change.raw.hex()}
    return verdict_of(plan, status, text, detail | {"damage": damage})


def ending_of(
    change: Damage, result: Bisection, changed: bool
) -> tuple[Status, str, dict[str, Any]]:
    """Return the status, the summary and the details of a trial."""
    named = [c for c in result.culprits if change.tensor in c.weight.split(", ")]
    seen = ", ".join(dict.fromkeys(f"{c.site} ({c.op}, {c.weight})" for c in result.culprits))
    detail = {
        "kind": change.kind,
        "changed": changed,
        "named": bool(named),
        "alone": bool(named) and len(named) == len(result.culprits),
        "beyond_bound": any(c.reason != OWN_WEIGHTS for c in named),
        "confirmed": result.patched is not None and result.patched.confirms,
        "seen": seen,
    }
    if named:
        return "agreed", f"{change}: named at {seen}", detail
    if not changed and not result.culprits:
        return "excused", f"{change}: changes no bit of the outputs", detail
    return "diverged", f"{change}: found {seen or 'nowhere'}", detail


def verdict_of(
    plan: DamagePlan, status: Status, text: str, detail: dict[str, Any] | None = None
) -> Verdict:
    again = f"lockstep selftest --arch {plan.variant} --faults {plan.faults} --seed {plan.seed}"
    again += f" --quant {plan.quant}" if plan.quant != "F32" else ""
    again += f" --settings {plan.settings.name}" if plan.settings.name != "exact" else ""
    return Verdict(
        suite=SUITE,
        case=f"synth:{plan.variant}",
        status=status,
        summary=text,
        detail=detail or {},
        key=f"{SUITE}/{status}" if status != "agreed" else "",
        repro="" if status == "agreed" else again,
    )
