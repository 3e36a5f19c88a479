"""Do both engines give the same logits at every position of a prompt, and the right ones?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.by_chance import by_chance
from lockstep.harness.context.enough_runs import noise_beside
from lockstep.harness.context.further_runs import (
    FurtherRun,
    LeftOut,
    further_runs,
    ids_of_narrow_integers,
    sequences_in,
    some_at_once,
)
from lockstep.harness.context.not_answered import Waits
from lockstep.harness.context.relations import asked_otherwise
from lockstep.harness.context.repeats import first_difference, not_deterministic, unsteady
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.judging.compare import (
    in_other_byte_order,
    largest,
    mismatch_between,
    worst_distance,
)
from lockstep.harness.judging.telling import why_nothing_is_told
from lockstep.harness.judging.tolerances import Bound, whole_run
from lockstep.harness.records import (
    Answered,
    Evaluation,
    Mismatch,
    Outcome,
    Rejected,
    Request,
    Unanswerable,
    Verdict,
)
from lockstep.harness.suites.parts.by_position import by_position
from lockstep.harness.suites.parts.gelu_by_erf import hidden_by_the_table
from lockstep.harness.suites.parts.hidden_tokens import (
    hidden_tokens,
    in_words,
    most_are_hidden,
)
from lockstep.harness.suites.parts.kept_in_f16 import with_f16_cache
from lockstep.harness.suites.parts.one_batch import with_one_batch
from lockstep.harness.suites.parts.threads import ask_several_threads
from lockstep.harness.suites.parts.which_tokens import (
    NOTHING,
    ids_that_differ,
    part,
    place_of,
    rounding,
    rows_that_differ,
    sentence,
    tokens_that_differ,
    wrong_rows,
)

FEWER_LAYERS = "logits: fewer layers"  # what is asked besides of a large model's first layers
LATER_LAYERS = "longer runs of its later layers"
AS_HONEST = "each agrees with an honest run, which may round activations as llama.cpp does or not"
BY_CHANCE = "where they part, an honest run in some dozens chooses the same other experts"
Ways = tuple[list[str], list[str], list[Verdict]]  # that give the same, not answered, what differs


class Logits(Suite, name="logits"):
    order = 40

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def begin(self, context: Context) -> None:
        context.begin_noise()

    def run(self, context: Context) -> Iterator[Verdict]:
        request = Request(batches=context.batches)
        context.progress("logits of both engines")
        expected, actual = context.ask_both("evaluate", request)
        info = context.subject_info
        # llama.cpp's own way of asking, replayed; or a run that is over
        once = (info.shows_nodes and info.computes_nodes) or info.partial
        # while the noise is measured
        again = None if once else context.subject.ask("evaluate", request)
        truth = np.concatenate(context.noise.logits)
        verdict = compared(context, "logits", context.batches, expected, actual, truth)
        if again is None:
            yield verdict
            return
        if isinstance(again, Answered) and part(
            context, np.concatenate(expected.logits), again.value
        ):  # or it is another each time
            verdict = with_one_batch(context, context.batches, verdict, expected, actual)
        try:
            same, unanswered, wrong = asked_more(context, request, actual, verdict, again)
        except NoAnswer:
            yield with_ways(verdict, [], ["in other ways, and further on: not asked after that"])
            raise
        if verdict.status == "agreed":
            unanswered += hidden_by_the_table(context)
            if all(each.status == "timed-out" for each in wrong):  # with fewer tokens it is not
                ask_several_threads(context, same, unanswered, wrong)
        yield with_ways(verdict, same, unanswered)
        if most_are_hidden(verdict.detail):
            yield context.verdict("logits", "not-compared", in_words(verdict.detail))
        yield from wrong


def asked_more(
    context: Context, request: Request, first: Evaluation, verdict: Verdict, again: Outcome
) -> Ways:
    """Otherwise, then more; again: what the same once more was answered."""
    agrees = verdict.status == "agreed"
    fewer = on_fewer_layers(context) if agrees else []
    further = of_all_layers(context) if fewer else further_runs(context)
    runs = list(further) if agrees else []
    for run in runs:
        if not run.known:
            context.honest.begin(run.batches, seed=context.seed, runs=0)
    shaky = unsteady(context.subject, request, first, doubt=not agrees, again=again)
    wrong = [not_deterministic(context, "logits", shaky)] if shaky else []
    if shaky and shaky.apart > 2 * context.noise.relative:
        why = "in other ways, and further on: its own runs differ by more than is allowed"
        return [], [], [*wrong, context.verdict("logits", "not-compared", why)]
    waits = Waits()
    same, unanswered, differ = asked_otherwise(context, first, waits, tensors_only=bool(fewer))
    if not agrees:  # it would be said of every run again
        return same, [*unanswered, "further on: this run does not agree"], wrong + differ
    more = asked_further(context, runs, first, waits)
    unanswered += [LATER_LAYERS] * bool(fewer)
    same += [*more[0], *(each.summary for each in fewer if each.status == "agreed")]
    differ += [*more[2], *(each for each in fewer if each.status != "agreed")]
    return same, unanswered + more[1], wrong + differ


def of_all_layers(context: Context) -> Iterator[FurtherRun]:
    """Of a large model, whose first layers are asked for all else."""
    yield ids_of_narrow_integers(context)
    if "greedy" not in (context.subject_info.levels or ("greedy",)):  # `decode` does not ask it
        yield some_at_once(context)


def on_fewer_layers(context: Context) -> list[Verdict]:
    """Of all that is asked besides of a model whose first layers say as much in less time, as
    harness.blackbox.fewer_layers says; nothing of others, which are asked whole."""
    if FEWER_LAYERS not in context.on_made_models:
        return []
    found = list(context.asked_on_made_models(FEWER_LAYERS))
    return found if {v.status for v in found} & {"agreed", "diverged"} else []


def asked_further(
    context: Context, runs: Sequence[FurtherRun], first: Evaluation, waits: Waits
) -> Ways:
    """first: what the subject answered to the usual run."""
    same: list[str] = []
    unanswered: list[str] = []
    wrong: list[Verdict] = []
    earlier = {"to the usual tokens": first}
    for run in runs:
        if hopeless := waits.why_none(run.words, run.batches):
            unanswered.append(hopeless)
            continue
        context.progress(f"logits of both engines {run.words}")
        request = Request(batches=run.batches)
        said = context.outcomes("evaluate", request)
        if lacking := left_out(run, *said):
            if lacking.status == "not-applicable":
                unanswered.append(lacking.why)
            else:
                wrong.append(lacking.verdict(context, "logits"))
            continue
        expected = context.answer(context.oracle, f"evaluate {run.words}", said[0])
        if failed := waits.verdict(context, "logits", run.words, run.batches, said[1]):
            wrong.append(failed)
            continue
        actual = context.answer(context.subject, f"evaluate {run.words}", said[1])
        verdict = further_verdict(context, run, expected, actual)
        verdict = with_one_batch(context, run.batches, verdict, expected, actual, usual=run.usual)
        if verdict.status == "agreed":
            same.append(run.words)
        else:
            wrong.append(placed(run, with_old_answer(run, verdict, actual, earlier)))
        if run.usual:
            earlier[run.words] = actual
    return same, unanswered, wrong


def with_old_answer(
    run: FurtherRun, verdict: Verdict, actual: Evaluation, earlier: Mapping[str, Evaluation]
) -> Verdict:
    """Said of an answer to other tokens that is one before: no op is wrong there. earlier: what the
    subject answered to others that are as many."""
    if not run.usual:
        return verdict
    for words, answer in earlier.items():
        if first_difference(replace(answer, trace=None), actual) is None:
            text = f"; bit for bit what it answered {words}: those that changed were not read"
            detail = {**verdict.detail, "answered_before": True}
            return replace(verdict, summary=verdict.summary + text, detail=detail)
    return verdict


def left_out(run: FurtherRun, oracle: Outcome, subject: Outcome) -> LeftOut | None:
    """Why a run cannot be compared. Nobody may lack what is the usual run with other tokens."""
    if isinstance(oracle, Unanswerable | Rejected):  # there is nothing to hold against the other
        return LeftOut(status="not-applicable", why=f"{run.words}: {oracle.message}")
    if run.usual or not isinstance(subject, Unanswerable | Rejected):
        return None
    return replace(LeftOut.of(run.words, subject), n_sequences=sequences_in(run.batches))


def further_verdict(
    context: Context, run: FurtherRun, oracle: Evaluation, subject: Evaluation
) -> Verdict:
    """Where the engines agree on what is known, an honest run would cost as much as both."""
    truth = np.concatenate(oracle.logits)
    if not run.known or part(context, truth, subject):
        truth = np.concatenate(context.honest.floor(run.batches, seed=context.seed, runs=0).logits)
    return compared(context, "logits", run.batches, oracle, subject, truth)


def placed(run: FurtherRun, verdict: Verdict) -> Verdict:
    """With what was asked, and the place as (batch, token of it)."""
    detail = {**verdict.detail, "asked": run.words}
    if "index" in detail:
        asked = [np.flatnonzero(batch.outputs) for batch in run.batches]
        places = [(i, int(token)) for i, tokens in enumerate(asked) for token in tokens]
        detail["batch"], detail["token_of_batch"] = places[detail["index"][0]]
    return replace(verdict, summary=f"{run.words}: {verdict.summary}", detail=detail)


def with_ways(verdict: Verdict, same: Sequence[str], unanswered: Sequence[str]) -> Verdict:
    text = verdict.summary
    if verdict.status == "agreed" and same:
        text += f"; the same {', '.join(same)}"
    left = [each for each in unanswered if each not in text]  # it may be said of fewer layers
    if left:
        text += f"; not compared {'; '.join(left)}"
    detail = {**verdict.detail, "same": list(same), "not_answered": list(unanswered)}
    return replace(verdict, summary=text, detail=detail)


def compared(
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
    """Every logit of every output of the batches, (outputs, vocabulary) in all.

    truth: of an honest run of our own, with which engines that agree must agree as well. Nobody is
    called wrong by it alone: where there is a difference, more runs are made on these batches.
    rows_differ: a right engine gives another row for each token.
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
        text = f"honest runs of this model overflow, so that no limit can be given for its {what}s"
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
        text, at_fault = AS_HONEST, who_is_wrong(context, batches, (expected, got), rounded)
    runs = {"oracle": [expected], "subject": [got], "both": [expected, got]}
    if at_fault and by_chance(context, batches, truth, runs[at_fault], float(bound.allowed)):
        text, at_fault = BY_CHANCE, ""
    if off is None or not at_fault:
        limit = float(bound.allowed) + float(rounded.max())
        why = why_nothing_is_told(expected, got, limit, what, rows_differ=rows_differ)
        if why:
            return context.verdict(suite, "not-compared", f"{why}: nothing was compared", detail)
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


def difference(
    expected: F32, got: F32, truth: F32, bound: Bound, rounded: NDArray[np.float64]
) -> Mismatch | None:
    """Between the engines, or else between the truth and what they agree on."""
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
    """Of oracle and subject: which agrees with no honest run of the oracle's file; "" if neither.

    An engine need not convert activations as llama.cpp does, so there are several honest runs. How
    large logits are they say too: those of a wrong engine may be none at all. rounded: how far the
    subject's may be off besides; otherwise: the subject may have other formats for activations.
    """
    runs_of_ours = context.honest_runs(batches)
    noise = noise_beside(context, batches, runs_of_ours, runs)
    others = (runs_of_ours[1], runs[0])
    if not np.isfinite(runs_of_ours[0]).any() and any(np.isfinite(run).any() for run in others):
        # In float64 there are numbers: a hidden cell, say, overflows in some engines and not in
        # all. Or the oracle makes numbers of a file's NaN.
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
    """Whether an engine gives these that has another format for activations than llama.cpp."""
    for run in context.converted_runs(batches):
        bound = whole_run(context.noise_on(batches), largest(run))
        if mismatch_between(run, logits, bound.allowed + rounded) is None:
            return True
    return False


def is_oracle_wrong(context: Context, batches: Sequence[Batch], logits: F32, truth: F32) -> bool:
    """Whether its logits are none to hold others against. Both: (outputs, vocabulary)."""
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
        text += f"; {detail['not_finite']} are NaN or infinite in both"
    if "hidden_tokens" in detail:
        text += f"; not compared {in_words(detail)}"
    return text
