"""Comparison of both engines' whole runs, and the engine at fault."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.enough_runs import by_chance, noise_beside
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.compare import (
    in_other_byte_order,
    largest,
    mismatch_between,
    worst_distance,
)
from lockstep.harness.judging.telling import NOTHING_TOLD, why_nothing_is_told
from lockstep.harness.judging.tolerances import Bound, whole_run
from lockstep.harness.records import (
    Evaluation,
    Mismatch,
    Verdict,
)
from lockstep.harness.suites.parts.by_position import by_position
from lockstep.harness.suites.parts.hidden import (
    hidden_tokens,
    in_words,
)
from lockstep.harness.suites.parts.kept_in_f16 import with_f16_cache
from lockstep.harness.suites.parts.rounded_factors import explain_by_factors
from lockstep.harness.suites.parts.which_tokens import (
    NOTHING,
    ids_that_differ,
    place_of,
    rounding,
    rows_that_differ,
    sentence,
    tokens_that_differ,
    wrong_rows,
)

AS_HONEST = "each agrees with an honest run, with llama.cpp's rounding of activations or without"
BY_FACTORS = "the subject's logits agree with our run that has"
BY_CHANCE = "where they diverge, one of some dozen honest runs chooses the same other experts"


def compare_runs(
    context: Context,
    suite: str,
    batches: Sequence[Batch],
    oracle: Evaluation,
    subject: Evaluation,
    truth: F32,
    what: str = "logit",
    *,
    rows_differ: bool = True,
) -> Verdict:
    """Compare every logit of every output of the batches, as arrays (outputs, vocabulary).

    truth: the logits of an honest run. If the engines agree, they must agree with this run too.
    This run alone proves no engine wrong. So more honest runs of these batches are made if the
    engines differ. rows_differ: True if a right engine gives a different row for each token.
    """
    expected, got = np.concatenate(oracle.logits), np.concatenate(subject.logits)
    if not np.isfinite(expected).any() and not np.isfinite(got).any():
        text = f"none of {expected.size} {what}s is finite in either engine: nothing to compare"
        return context.verdict(suite, "not-compared", text)
    rounded, size = rounding(context, subject), largest(expected)
    bound = whole_run(context.noise.relative, size)
    off = difference(expected, got, truth, bound, rounded)
    if off is not None and off.kind == "value":
        bound = whole_run(noise_beside(context, batches, [truth], (expected, got)), size)
        off = difference(expected, got, truth, bound, rounded)
    if not np.isfinite(bound.allowed):
        text = f"honest runs of this model overflow, so there is no limit for its {what}s"
        return context.verdict(suite, "not-compared", text, {"reason": bound.reason})
    detail: dict[str, Any] = {
        "worst_relative_to_largest_logit": worst_distance(expected, got) / (size or 1.0),
        "allowed_relative": float(bound.allowed) / (size or 1.0),
        "largest_logit": size,
        "reason": bound.reason.replace("largest logit", f"largest {what}"),
        "tokens": len(expected),
        "not_finite": int((~np.isfinite(expected)).sum()),
        **by_position(context, expected, got, what),
    }
    if what != "logit":
        detail["what"] = what
    elif hidden := hidden_tokens(expected, float(bound.allowed)):
        detail["hidden_tokens"], detail["vocabulary"] = hidden, expected.shape[-1]
    text, at_fault = agreement(detail, what), ""
    if off is not None:
        sides = {"oracle": expected, "subject": got}
        text, at_fault = who_is_at_fault(context, batches, sides, truth, rounded, bound, detail)
    if off is None or not at_fault:
        most = float(bound.allowed) + float(rounded.max())
        why = why_nothing_is_told(expected, got, most, what, rows_differ=rows_differ)
        if why:
            text, detail = f"{why}: nothing was compared", {**detail, NOTHING_TOLD: why.why.name}
            return context.verdict(suite, "not-compared", text, detail)
        return context.verdict(suite, "agreed", text, detail)
    detail |= {
        "index": list(off.index),
        "expected": off.expected,
        "actual": off.actual,
        "mismatched": off.mismatched,
        "total": off.total,
        "kind": off.kind,
        "at_fault": at_fault,
    }
    limit = bound.allowed + rounded
    rows = wrong_rows(context, batches, expected, got, limit) if at_fault == "subject" else ()
    rows = rows or rows_that_differ(expected, got, limit)
    text = sentence(off, at_fault, what, place_of(batches, off, len(expected)))
    text += tokens_that_differ(batches, rows, len(expected))
    text += ids_that_differ(expected, got, limit) if what == "logit" else ""
    text += in_other_byte_order(expected, got, float(bound.allowed))
    text += with_f16_cache(context, batches, got, detail, what)
    return context.verdict(suite, "diverged", text, detail, key=(suite, off.kind, at_fault))


def who_is_at_fault(
    context: Context,
    batches: Sequence[Batch],
    sides: Mapping[str, F32],
    truth: F32,
    rounded: NDArray[np.float64],
    bound: Bound,
    detail: dict[str, Any],
) -> tuple[str, str]:
    """Return why the runs may still be right although they differ, and the engine at fault, "" if
    no engine is.

    sides: the logits of the oracle and of the subject; detail: receives the design.
    """
    expected, got = sides["oracle"], sides["subject"]
    at_fault = who_is_wrong(context, batches, (expected, got), rounded)
    if at_fault == "subject":
        float32 = (expected, *context.honest_runs(batches))
        if design := explain_by_factors(context, batches, got, float32, rounded):
            detail["design"] = design.words
            return f"{BY_FACTORS} {design.words}", ""
    accused = [each for side, each in sides.items() if at_fault in (side, "both")]
    if accused and by_chance(context, batches, truth, accused, float(bound.allowed)):
        return BY_CHANCE, ""
    return AS_HONEST, at_fault


def difference(
    expected: F32, got: F32, truth: F32, bound: Bound, rounded: NDArray[np.float64]
) -> Mismatch | None:
    """Return the difference between the engines; if they agree, the difference between the truth
    and the oracle."""
    between = mismatch_between(expected, got, bound.allowed + rounded)
    return between or mismatch_between(truth, expected, bound.allowed)


def who_is_wrong(
    context: Context,
    batches: Sequence[Batch],
    runs: tuple[F32, F32],
    rounded: NDArray[np.float64] = NOTHING,
    *,
    otherwise: bool = True,
) -> str:
    """Return "oracle", "subject" or "both" for engines that agree with no honest run of the
    oracle's file; "" if each engine agrees with an honest run.

    An engine need not convert activations as llama.cpp does, so there are several honest runs. The
    honest runs also show how large logits are, because a wrong engine may have no finite logits.
    rounded: the additional error of the subject; otherwise: True if the subject may convert
    activations to other formats.
    """
    runs_of_ours = context.honest_runs(batches)
    noise = noise_beside(context, batches, runs_of_ours, runs)
    others = (runs_of_ours[1], runs[0])
    if not np.isfinite(runs_of_ours[0]).any() and any(np.isfinite(run).any() for run in others):
        # Other runs have finite numbers: for example, a hidden value overflows in only some
        # engines, or the oracle turns a file's NaN into numbers.
        raise NoAnswer("not-compared", "honest runs have no finite numbers: there is no limit", {})
    honest = [(run, whole_run(noise, largest(run))) for run in runs_of_ours]
    more = (NOTHING, rounded)
    wrong = [
        role
        for role, logits, off in zip(("oracle", "subject"), runs, more, strict=True)
        if all(mismatch_between(truth, logits, bound.allowed + off) for truth, bound in honest)
    ]
    doubt = otherwise and "subject" in wrong
    if doubt and converts_otherwise(context, batches, runs[1], rounded):
        wrong.remove("subject")
    return "both" if len(wrong) == 2 else "".join(wrong)


def converts_otherwise(
    context: Context,
    batches: Sequence[Batch],
    logits: F32,
    rounded: NDArray[np.float64],
) -> bool:
    """Return True if an honest engine that converts activations to a format other than llama.cpp's
    gives these logits."""
    for run in context.converted_runs(batches):
        bound = whole_run(context.noise_on(batches), largest(run))
        if mismatch_between(run, logits, bound.allowed + rounded) is None:
            return True
    return False


def is_oracle_wrong(context: Context, batches: Sequence[Batch], logits: F32, truth: F32) -> bool:
    """Return True if the oracle's logits are too wrong to judge other engines by them. Both arrays
    are (outputs, vocabulary)."""
    bound = whole_run(context.noise.relative, largest(logits))
    if mismatch_between(truth, logits, bound.allowed) is None:
        return False
    return bool(who_is_wrong(context, batches, (logits, logits), otherwise=False))


def agreement(detail: dict[str, Any], what: str) -> str:
    text = (
        f"{detail['tokens']} positions: worst {detail['worst_relative_to_largest_logit']:.1e} of "
        f"the largest {what} (allowed {detail['allowed_relative']:.1e})"
    )
    if detail["not_finite"]:
        text += f"; {detail['not_finite']} {what}s are NaN or infinite in both"
    if "hidden_tokens" in detail:
        text += f"; not compared: {in_words(detail)}"
    return text
