"""Comparison of both engines' logits at every position of a prompt. The logits must be equal, and
right."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.further_runs import (
    LeftOut,
    further_runs,
    ids_of_narrow_integers,
    sequences_in,
    some_at_once,
)
from lockstep.harness.context.one_by_one import Waits
from lockstep.harness.context.relations import compare_way, ways
from lockstep.harness.context.repeats import first_difference, not_deterministic, unsteady
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.judging.telling import NOTHING_TOLD
from lockstep.harness.records import (
    Answered,
    Evaluation,
    Outcome,
    Rejected,
    Request,
    Unanswerable,
    Verdict,
)
from lockstep.harness.suites.parts.hidden import (
    hidden_by_the_table,
    in_words,
    most_are_hidden,
)
from lockstep.harness.suites.parts.one_batch import with_one_batch
from lockstep.harness.suites.parts.which_tokens import (
    part,
)
from lockstep.harness.suites.parts.whole_runs import compare_runs

# name of the questions that are asked with only the first layers of a large model
FEWER_LAYERS = "logits: fewer layers"
LATER_LAYERS = "longer runs of its later layers"


@dataclass(kw_only=True)
class FurtherAnswers:
    """The answers to further runs. same: runs that agree; unanswered: reasons for missing runs;
    wrong: verdicts on wrong runs."""

    same: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    wrong: list[Verdict] = field(default_factory=list)


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
        # these engines replay llama.cpp's run, or a run that is over
        once = (info.shows_nodes and info.computes_nodes) or info.partial
        # the subject computes while the noise is measured
        again = None if once else context.subject.ask("evaluate", request)
        truth = np.concatenate(context.noise.logits)
        verdict = compare_runs(context, "logits", context.batches, expected, actual, truth)
        if again is None:
            yield verdict
            return
        if isinstance(again, Answered) and part(
            context, np.concatenate(expected.logits), again.value
        ):  # or the subject's answer differs from time to time
            verdict = with_one_batch(context, context.batches, verdict, expected, actual)
        try:
            more = asked_more(context, request, actual, verdict, again)
        except NoAnswer:
            yield with_ways(
                verdict, [], ["other batches and longer runs: not asked after that failure"]
            )
            raise
        if verdict.status == "agreed":
            more.unanswered += hidden_by_the_table(context)
            # an engine that timed out here does not time out with fewer tokens
            if all(each.status == "timed-out" for each in more.wrong):
                ask_several_threads(context, more)
        yield with_ways(verdict, more.same, more.unanswered)
        if most_are_hidden(verdict.detail):
            yield context.verdict("logits", "not-compared", in_words(verdict.detail))
        yield from more.wrong


def asked_more(
    context: Context, request: Request, first: Evaluation, verdict: Verdict, again: Outcome
) -> FurtherAnswers:
    """Ask for the usual run again, and for the same run in other ways. If the usual run agrees,
    also ask for further runs. again: the subject's second answer to the usual run."""
    agrees = verdict.status == "agreed"
    fewer = on_fewer_layers(context) if agrees else []
    further = of_all_layers(context) if fewer else further_runs(context)
    runs = list(further) if agrees else []
    for run in runs:
        if not run.known:
            context.honest.begin(run.batches, seed=context.seed, runs=0)
    found = FurtherAnswers()
    shaky = unsteady(context.subject, request, first, doubt=not agrees, again=again)
    if shaky:
        found.wrong.append(not_deterministic(context, "logits", shaky))
        if shaky.apart > 2 * context.noise.relative:
            why = (
                "other batches and longer runs: the engine's own runs differ by more than the limit"
            )
            found.wrong.append(context.verdict("logits", "not-compared", why))
            return found
    waits = Waits()
    otherwise = [run for run in ways(context) if run.capture or not fewer]
    run_all(context, otherwise, first, waits, found)
    if not agrees:  # otherwise every run would report the same difference
        found.unanswered.append("longer runs, because this run differs already")
        return found
    found.unanswered += [LATER_LAYERS] * bool(fewer)
    run_all(context, runs, first, waits, found)
    found.same += [each.summary for each in fewer if each.status == "agreed"]
    found.wrong += [each for each in fewer if each.status != "agreed"]
    return found


def ask_several_threads(context: Context, found: FurtherAnswers) -> None:
    """Run the engine with several threads, as in blackbox.several_threads, if it is right with one
    thread."""
    for verdict in context.asked_on_made_models("logits"):
        if verdict.status == "agreed":
            found.same.append(verdict.detail["asked"])
        elif verdict.status == "not-applicable":
            found.unanswered.append(verdict.summary)
        else:
            found.wrong.append(verdict)


def of_all_layers(context: Context) -> Iterator[Run]:
    """Yield the further runs that need all layers of a large model. Its first layers suffice for
    the other runs."""
    yield ids_of_narrow_integers(context)
    # because `decode` does not ask this engine
    if "greedy" not in (context.subject_info.levels or ("greedy",)):
        yield some_at_once(context)


def on_fewer_layers(context: Context) -> list[Verdict]:
    """Return verdicts on all further runs, made on the model's first layers to save time
    (harness.blackbox.fewer_layers). Return an empty list if all layers must run."""
    found = list(context.asked_on_made_models(FEWER_LAYERS))
    return found if {v.status for v in found} & {"agreed", "diverged"} else []


def run_all(
    context: Context, runs: Iterable[Run], first: Evaluation, waits: Waits, found: FurtherAnswers
) -> None:
    """Ask for each run and compare it. first: the subject's answer to the usual run."""
    earlier = {"to the usual tokens": first}
    for run in runs:
        if hopeless := waits.why_none(run.words, run.batches):
            found.unanswered.append(hopeless)
            continue
        oracle, subject = outcomes_of(context, run)
        if lacking := left_out(run, oracle, subject):
            if lacking.status == "not-applicable":
                found.unanswered.append(lacking.why)
            else:
                found.wrong.append(lacking.verdict(context, "logits"))
            continue
        own = Waits() if run.capture else waits  # a traced run is slower, but not longer
        question = f"evaluate {run.words}"
        expected = None if oracle is None else context.answer(context.oracle, question, oracle)
        if failed := own.verdict(context, "logits", run.words, run.batches, subject):
            found.wrong.append(failed)
            continue
        actual = context.answer(context.subject, question, subject)
        if run.same:
            said = compare_way(context, run, first.logits, actual.logits)
        else:
            assert expected is not None
            said = compare_further(context, run, expected, actual, earlier)
        if isinstance(said, Verdict) and NOTHING_TOLD in said.detail:
            found.unanswered.append(said.summary)  # the usual run already distinguished engines
        elif isinstance(said, Verdict):
            found.wrong.append(said)
        else:
            found.same.append(said)
        if run.usual:
            earlier[run.words] = actual


def outcomes_of(context: Context, run: Run) -> tuple[Outcome | None, Outcome]:
    """Return the outcomes of the oracle and the subject. The oracle's outcome is None if the
    subject is compared with itself."""
    if run.same:
        context.progress(f"the subject's logits {run.words}")
        return None, context.subject.ask("evaluate", run.request)
    context.progress(f"logits of both engines {run.words}")
    return context.outcomes("evaluate", run.request)


def compare_further(
    context: Context,
    run: Run,
    expected: Evaluation,
    actual: Evaluation,
    earlier: Mapping[str, Evaluation],
) -> Verdict | str:
    """Compare a further run. Return the run's description if it agrees, else the verdict with its
    place."""
    found = further_verdict(context, run, expected, actual)
    found = with_one_batch(context, run.batches, found, expected, actual, usual=run.usual)
    if found.status == "agreed":
        return run.words
    return with_place(run, with_old_answer(run, found, actual, earlier))


def with_old_answer(
    run: Run, verdict: Verdict, actual: Evaluation, earlier: Mapping[str, Evaluation]
) -> Verdict:
    """Add a note if the answer repeats an earlier answer bit for bit, because then no op is wrong.
    earlier: the subject's answers to earlier runs with the same number of other tokens."""
    if not run.usual:
        return verdict
    for words, answer in earlier.items():
        if first_difference(replace(answer, trace=None), actual) is None:
            text = (
                f"; the answer is bit for bit the answer {words}: the engine did not read "
                "the changed tokens"
            )
            detail = {**verdict.detail, "answered_before": True}
            return replace(verdict, summary=verdict.summary + text, detail=detail)
    return verdict


def left_out(run: Run, oracle: Outcome | None, subject: Outcome) -> LeftOut | None:
    """Return why a run cannot be compared, or None. A usual run with other tokens is always
    compared, unless the oracle refuses it."""
    # without the oracle's answer nothing can be compared
    if isinstance(oracle, Unanswerable | Rejected):
        return LeftOut(status="not-applicable", why=f"{run.words}: {oracle.message}")
    if run.usual or not isinstance(subject, Unanswerable | Rejected):
        return None
    return replace(LeftOut.of(run.words, subject), n_sequences=sequences_in(run.batches))


def further_verdict(
    context: Context, run: Run, oracle: Evaluation, subject: Evaluation, suite: str = "logits"
) -> Verdict:
    """Compare a further run. If the engines agree on a known computation, no honest run is made,
    because it would cost as much as both engines' runs."""
    truth = np.concatenate(oracle.logits)
    if not run.known or part(context, truth, subject):
        truth = np.concatenate(context.honest.floor(run.batches, seed=context.seed, runs=0).logits)
    return compare_runs(context, suite, run.batches, oracle, subject, truth)


def with_place(run: Run, verdict: Verdict) -> Verdict:
    """Add the run's description to the verdict, and the place as (batch, token of the batch)."""
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
    # the runs with fewer layers may have said the same
    left = [each for each in unanswered if each not in text]
    if left:
        text += f"; not compared: {'; '.join(left)}"
    detail = {**verdict.detail, "same": list(same), "not_answered": list(unanswered)}
    return replace(verdict, summary=text, detail=detail)
