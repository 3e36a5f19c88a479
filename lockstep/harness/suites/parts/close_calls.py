"""Beginnings behind which the two likeliest tokens are nearly alike: where a small error shows.

Greedy tokens of an engine that is a little wrong are right for a long way. But of some thousand
beginnings a few have a margin hundreds of times smaller than most: of those whose margin is beyond
what honest runs may differ by, the smallest are asked for.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.random import Philox

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.further_runs import (
    LeftOut,
    batches_behind,
    is_small,
    n_cells,
    with_rows,
)
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import between_two
from lockstep.harness.records import Rejected, Request, Status, Unanswerable, Verdict

RUNS = 32  # of so many tokens, whose every beginning is looked at; of a large model one
TOKENS = 96
ASKED = 16  # of a large model 8: each is a prompt that an engine reads
MOST = 1 << 24  # logits of a run
# Times what honest runs may differ by on the usual prompt. What is asked about again is held to the
# noise of its own runs, which may be larger: a margin just beyond the first limit would be within
# the second, and one of the few questions would say nothing.
ROOM = 1.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Beginning:
    ids: tuple[int, ...]
    logits: F32  # the oracle's behind it, (1, vocabulary)
    margin: float

    @property
    def chosen(self) -> int:
        return int(self.logits[0].argmax())

    def behind_best(self, token: int) -> float:
        return float(self.logits[0].max() - self.logits[0, token])

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        return (with_rows(self.ids, [len(self.ids)]),)


def seeded_runs(context: Context) -> Iterator[tuple[list[int], list[int]]]:
    """Ids from all over, and the lengths of their beginnings."""
    n = min(TOKENS, n_cells(context) - 1)
    for number in range(RUNS if is_small(context.file) else 1):
        raw = Philox(key=[context.seed, number + 1]).random_raw(n) >> np.uint64(33)
        yield (raw % np.uint64(context.facts.n_vocab)).astype(int).tolist(), [*range(1, n + 1)]


def texts_of(context: Context, text: bytes) -> Iterator[bytes]:
    """The text with its words turned about, each of a length that is soon read."""
    words = text.split()
    for number in range(RUNS if is_small(context.file) else 1):
        first = number * len(words) // RUNS
        yield b" ".join(words[first:] + words[:first])[:TOKENS]


def beginnings_of(context: Context, text: bytes) -> tuple[list[int], dict[int, bytes]]:
    """Its ids, and by how many they are those beginnings whose own ids are a beginning of them."""
    every = [text[:n] for n in range(1, len(text) + 1)]
    *rest, ids = context.ask(context.oracle, "tokenize", every)
    lengths = {
        len(own): part for own, part in zip(rest, every, strict=False) if own == ids[: len(own)]
    }
    lengths.pop(0, None)
    most = n_cells(context)
    return ids, {n: part for n, part in sorted(lengths.items()) if n < most}


def closest(context: Context, runs: Iterable[tuple[list[int], list[int]]]) -> list[Beginning]:
    """runs: ids, and how long the beginnings are that can be asked for."""
    found: list[tuple[float, int, Beginning]] = []
    number = count()  # no two beginnings are compared themselves
    for ids, ends in runs:
        ends = ends[: MOST // context.facts.n_vocab]
        if not ends:
            continue
        batches = batches_behind(context, ids[: ends[-1]], ends)
        run = context.ask(context.oracle, "evaluate", Request(batches=batches))
        for end, row in zip(ends, np.concatenate(run.logits), strict=True):
            margin = margin_of(row)
            if margin > ROOM * allowed_in(context, row):
                one = Beginning(ids=tuple(ids[:end]), logits=row[None].copy(), margin=margin)
                heapq.heappush(found, (-margin, next(number), one))
                if len(found) > (ASKED if is_small(context.file) else ASKED // 2):
                    heapq.heappop(found)
    return [one for *_, one in sorted(found, reverse=True)]


def margin_of(row: F32) -> float:
    """Of no numbers there is none."""
    if len(row) < 2 or not np.isfinite(row).all():
        return 0.0
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


def allowed_in(context: Context, row: F32) -> float:
    return between_two(context.noise.relative, row)


def said_behind(
    context: Context, close: Sequence[Beginning], question: str, given: Callable[[Beginning], Any]
) -> tuple[list[tuple[Beginning, Any]], LeftOut | None]:
    """What the subject says of each, for one token; and why it does not of those that are longer
    than what it has answered."""
    answers, left = [], None
    for one in close:
        outcome = context.subject.ask(question, given(one), 1)
        is_long = len(one.ids) > context.n_tokens
        if isinstance(outcome, Unanswerable | Rejected) and is_long:
            left = LeftOut.of(f"beginnings of {len(one.ids)} tokens", outcome)
        else:
            answers.append((one, context.answer(context.subject, question, outcome)))
    return answers, left


def said_of(
    context: Context, suite: str, n: int, same: Sequence[Beginning], ties: int
) -> Iterator[Verdict]:
    """Of an engine of which nothing is wrong. n: answers; those that are neither the same nor ties
    are what one honest run of another design comes to."""
    if not n:
        text = "no two tokens are nearly alike and further apart than honest runs"
        yield context.verdict(suite, "not-applicable", text)
        return
    parts, others = [], n - len(same) - ties
    if same:
        parts += [f"the next token is the same behind {len(same)} prompts with {in_words(same)}"]
    if ties:
        parts += [f"behind {ties} another one is within the noise"]
    if others:
        parts += [f"behind {others} it is what honest runs of another design choose"]
    status: Status = "agreed" if same else "excused"
    detail = {"close": len(same), "ties": ties, "others": others}
    yield context.verdict(suite, status, ", ".join(parts), detail)


def in_words(close: Sequence[Beginning]) -> str:
    size = max((largest(one.logits) for one in close), default=1.0) or 1.0
    first, last = (one.margin / size for one in (close[0], close[-1]))
    return f"margins of {first:.1e} to {last:.1e} of the largest logit"
