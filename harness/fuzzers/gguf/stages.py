"""Stages. In a stage, a parser reads many files in one of its ways, and Lockstep finds the files
for which it gives no answer."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.adapters.parts.parsing import (
    CRASHED,
    HUNG,
    Parsed,
    answer_of,
    pack_files,
    parse_answer,
)
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import no_answer
from lockstep.harness.records import Answered, Crashed, Outcome, TimedOut

FULL = "buffer"  # the subject's way; the oracle is asked about every file in this way


@dataclass(kw_only=True)
class Stage:
    """A parser and one of its ways to read. every: the number n if the stage is asked about one
    file in n.

    A witness is slow, so it reads a sample, and all files on which the subject and another parser
    differ.
    """

    session: Session
    way: str
    every: int
    witness: bool
    # one thread for each session, because a session answers one question at a time
    helper: ThreadPoolExecutor
    counts: Counter[str] = field(default_factory=Counter)
    asked: int = 0  # total number; `counts` starts again with each verdict

    @property
    def name(self) -> str:
        return f"{self.session.name} {self.way}"

    def ask(self, files: Sequence[bytes]) -> "Future[Parsed]":
        return self.helper.submit(answer_about, self.session, self.way, files)


def answer_about(session: Session, way: str, files: Sequence[bytes]) -> Parsed:
    """Return the answers about the files. If a question gets no answer, each half of its files is
    asked about again, until the failing file is known.

    Raises NoAnswer for an engine that answers about no file at all.
    """
    if not files:
        return parse_answer(answer_of([], {}), 0)
    outcome = session.ask("parse", *pack_files(files), way)
    if isinstance(outcome, Answered):
        return parse_answer(outcome.value, len(files))
    nothing = session.ask("parse", *pack_files([]), way)
    if not isinstance(outcome, Crashed | TimedOut) or not isinstance(nothing, Answered):
        raise no_answer(session.name, "parse", outcome)
    if len(files) == 1:
        return parse_answer(ending_of(session.name, outcome), 1)
    middle = len(files) // 2
    halves = (answer_about(session, way, some) for some in (files[:middle], files[middle:]))
    return join_answers(*halves)


def ending_of(engine: str, outcome: Outcome) -> dict[str, Any]:
    ending = HUNG if isinstance(outcome, TimedOut) else CRASHED
    return answer_of([(ending, 0, -1)], {0: no_answer(engine, "parse", outcome).summary})


def join_answers(one: Parsed, other: Parsed) -> Parsed:
    n = len(one.endings)
    return Parsed(
        endings=np.concatenate([one.endings, other.endings]),
        digests=np.concatenate([one.digests, other.digests]),
        peaks=np.concatenate([one.peaks, other.peaks]),
        words={**one.words, **{n + i: text for i, text in other.words.items()}},
    )


def part(answer: Parsed, some: Sequence[int]) -> Parsed:
    words = {j: answer.words[i] for j, i in enumerate(some) if i in answer.words}
    chosen: NDArray[np.int64] = np.array(some, np.int64)
    return Parsed(
        endings=answer.endings[chosen],
        digests=answer.digests[chosen],
        peaks=answer.peaks[chosen],
        words=words,
    )


def describe_answer(answer: Parsed) -> str:
    words = answer.words.get(0, "")
    return f"{answer.ending(0)}: {words}" if words else answer.ending(0)


def opened_stages(
    stack: ExitStack, sessions: dict[Session, dict[str, int]], witness: str = ""
) -> list[Stage]:
    """Return the stages. sessions: for each engine, its ways, with the number n for "one file in
    n"."""
    stages = []
    for session, ways in sessions.items():
        helper = stack.enter_context(ThreadPoolExecutor(1))
        is_witness = session.name == witness
        stages += [
            Stage(session=session, way=way, every=every, witness=is_witness, helper=helper)
            for way, every in ways.items()
        ]
    return stages
