"""Sessions: a loaded session must continue as if it had never been saved.

The engine decodes a prompt and saves its state. A fresh engine loads the file, and must give the
same logits for the next tokens. Each engine is first compared with itself. If bits differ, the
limit is twice the difference between the engine's own runs, or twice the noise of honest runs.
After loading, the cells of windows may be in other places, so sums may be in another order. Then
the loaded session is compared with the oracle's run, within the limit of the logits suite.
llama.cpp uses its own state files.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.asking.session import Session
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.records import Answered, Evaluation, Request, Unanswerable, Verdict
from lockstep.harness.suites.logits import further_verdict, with_place
from lockstep.harness.suites.parts.offered import not_asked_of_sessions

NAME, LEVEL = "states", "save"
BESIDE = 5  # tokens of a second sequence
FEWER = 3  # the second prompt has so many tokens fewer
SAVING, LOADING = "saving", "loading"  # values of detail["step"]: the step that changes the logits
LOOK_AT = {
    SAVING: "look at what save changes in the session that goes on",
    LOADING: "look at what the file holds: tokens, positions, keys, values, states, windows",
}


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """The batches before and after a save. sequence: the sequence to save; None for all
    sequences."""

    words: str
    batches: tuple[Batch, ...]
    then: tuple[Batch, ...]
    sequence: int | None = None


class SavedSessions(Suite, name=NAME):
    order = 47
    expected = False  # False: most engines offer no sessions

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        lacks = "the model has no cache of tokens that a file could hold"
        if (said := not_asked_of_sessions(context, LEVEL, NAME, lacks)) is not None:
            yield from said
            return
        runs = saved_runs(context)
        if context.oracle is not context.subject and context.oracle.name == "llama.cpp":
            for verdict in judge_engine(context, context.oracle, runs):
                yield replace(verdict, about=context.oracle.name)
                if verdict.status == "not-applicable":  # the model has no state
                    return
        yield from judge_engine(context, context.subject, runs)


def saved_runs(context: Context) -> list[SavedRun]:
    """Return four runs: one sequence saved alone, two sequences saved together, the second of two
    sequences saved alone, and a shorter prompt. The last two overwrite existing files."""
    ids = context.tokens
    n = context.n_tokens
    prompt, after = Batch.of(ids[:n]), tuple(step_at(ids, n + i, n + i) for i in range(2))
    beside = Batch.of((ids * BESIDE)[:BESIDE], seq_id=1)
    follows = Batch.of(ids[:1], start=BESIDE, seq_id=1)
    m = max(1, n - FEWER)
    return [
        SavedRun(words="one sequence alone", batches=(prompt,), then=after, sequence=0),
        SavedRun(words="all sequences", batches=(prompt, beside), then=(*after, follows)),
        SavedRun(
            words="the second of two sequences",
            batches=(prompt, beside),
            then=(follows,),
            sequence=1,
        ),
        SavedRun(
            words="a shorter prompt under the same name",
            batches=(Batch.of(ids[n - m : n]),),
            then=(step_at(ids, 0, m),),
        ),
    ]


def step_at(ids: Sequence[int], at: int, start: int) -> Batch:
    return Batch.of(ids[at : at + 1], start=start)


def judge_engine(context: Context, session: Session, runs: Sequence[SavedRun]) -> Iterator[Verdict]:
    """Yield verdicts until something differs, because one mistake shows in most runs."""
    with (
        TemporaryDirectory(prefix="lockstep-") as folder,
        session.another() or nullcontext(session) as fresh,
    ):
        for run in runs:
            path = Path(folder) / ("all" if run.sequence is None else "alone")
            try:
                for verdict in judge_run(context, session, fresh, run, path):
                    yield verdict
                    if verdict.status != "agreed":
                        return
            except NoAnswer as error:
                yield context.verdict(NAME, error.status, error.summary, error.detail)
                return


def judge_run(
    context: Context, session: Session, fresh: Session, run: SavedRun, path: Path
) -> Iterator[Verdict]:
    context.progress(f"{session.name}: {run.words} saved, loaded and continued")
    asked = (run.batches, run.then, str(path), run.sequence)
    saved = as_rows(context.ask(session, "save", *asked))
    if not path.is_file():
        text = f"{session.name} wrote no file: {run.words}"
        yield context.verdict(NAME, "diverged", text, {"step": SAVING}, (NAME, "no file"))
        return
    whole = session.ask("evaluate", Request(batches=(*run.batches, *run.then)))
    if isinstance(whole, Answered):
        never = as_rows(evaluation_tail(whole.value, len(run.then)))
        found = compare_rows(context, session, run, asked, never, saved, SAVING)
        if found.status != "agreed":
            yield found
            return
    elif not isinstance(whole, Unanswerable):
        context.answer(session, "evaluate", whole)
    logits = context.ask(fresh, "load", str(path), run.then, run.sequence)
    found = compare_rows(context, session, run, asked, saved, as_rows(logits), LOADING)
    if found.status == "agreed" and session is not context.oracle:
        right = compare_with_oracle(context, run, logits)
        found = found if right.status == "agreed" else right
    yield found


def compare_with_oracle(context: Context, run: SavedRun, logits: Sequence[F32]) -> Verdict:
    """Compare the subject's logits after loading with the oracle's logits of the same tokens."""
    request = Request(batches=(*run.batches, *run.then))
    oracle = context.ask(context.oracle, "evaluate", request)
    silent = (replace(batch, outputs=np.zeros(len(batch), np.bool_)) for batch in run.batches)
    none = tuple(rows[:0] for rows in oracle.logits[: len(run.batches)])  # the prompt's rows
    words = f"{run.words}, after loading"
    compared = Run(words=words, batches=(*silent, *run.then), known=True)
    tail = evaluation_tail(oracle, len(run.then))
    right, got = (Evaluation(logits=(*none, *rows), trace=None) for rows in (tail, logits))
    return with_place(compared, further_verdict(context, compared, right, got, NAME))


def evaluation_tail(found: Evaluation, n: int) -> tuple[F32, ...]:
    return found.logits[-n:]


def as_rows(logits: Sequence[F32]) -> F32:
    """Return the rows of all batches, (outputs, vocabulary)."""
    return np.concatenate(logits)


def compare_rows(
    context: Context,
    session: Session,
    run: SavedRun,
    asked: tuple[Any, ...],
    expected: F32,
    actual: F32,
    step: str,
) -> Verdict:
    """Compare the bits. If they differ, ask the engine again and compare within the noise."""
    detail: dict[str, Any] = {"step": step, "asked": run.words, "sequence": run.sequence}
    words = f"{session.name}: {run.words}"
    if np.array_equal(expected.view(np.uint32), actual.view(np.uint32)):
        return context.verdict(NAME, "agreed", f"{words}: the same bits", detail | {"bits": True})
    apart = relative(expected, actual)
    again = as_rows(context.ask(session, "save", *asked))
    own = relative(as_rows(context.ask(session, "save", *asked)), again)
    allowed = 2 * max(own, context.noise_on((*run.batches, *run.then)))
    detail |= {"bits": False, "apart": apart, "own_runs_apart": own, "allowed": allowed}
    how = f"after {step} the logits differ by {apart:.2g} of the largest logit"
    how += f" (allowed {allowed:.2g})"
    if apart <= allowed:
        return context.verdict(NAME, "agreed", f"{words}: {how}", detail)
    row = int(np.argmax(np.abs(expected - actual).max(axis=-1)))
    detail["row"] = row
    text = f"{words}: {how}, most at token {row} after {step}; {LOOK_AT[step]}"
    return context.verdict(NAME, "diverged", text, detail, (NAME, step))


def relative(expected: F32, actual: F32) -> float:
    """Return the largest difference as a share of the largest logit; infinity if the shapes differ,
    or if the arrays have finite logits at different places."""
    if expected.shape != actual.shape or (np.isfinite(expected) != np.isfinite(actual)).any():
        return float("inf")
    both = np.isfinite(expected)
    off = np.abs(expected[both].astype(np.float64) - actual[both])
    largest = float(np.abs(expected[both]).max(initial=0.0))
    return float(off.max(initial=0.0)) / (largest or 1.0)
