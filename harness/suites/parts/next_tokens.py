"""The next token after many prefixes, for an engine that shows nothing else, and close calls
between two tokens.

The greedy tokens of a slightly wrong engine stay right for a long time. But among some thousand
beginnings, a few have a margin hundreds of times smaller than most. The engine is asked for the
beginnings with the smallest margins that still exceed the noise of honest runs.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.random import Philox

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.further_runs import (
    LeftOut,
    batches_behind,
    longer,
    n_cells,
    with_rows,
)
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import between_two, between_two_in_rows
from lockstep.harness.records import Rejected, Request, Status, Unanswerable, Verdict
from lockstep.harness.suites.parts.oracles_logits import (
    AS_NEAR,
    WRONG_ORACLE,
    designs_that_say,
    is_honest,
    nearly_chosen,
    oracles_logits,
    other_choice,
    why_any_choice_agrees,
)

RUNS = 32  # runs of so many tokens, with all prefixes; one run for a large model
TOKENS = 96
ASKED = 16  # 8 for a large model: the engine reads a prompt for each
MOST = 1 << 24  # number of logits of a run
# Factor on the noise of the usual prompt. A prefix that is asked again has its own noise, which may
# be larger. A margin just beyond the first limit would then be within the second, and one of the
# few questions would be lost.
ROOM = 1.5
NO_LIMIT = "honest runs of this model overflow, so there is no limit for its tokens"
MOST_BEGINNINGS = 32  # prefixes after which an engine is asked for one token


@dataclass(frozen=True, kw_only=True, eq=False)
class Beginning:
    ids: tuple[int, ...]
    logits: F32  # the oracle's logits after the prefix: (1, vocabulary)
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
    """Yield random ids of the whole vocabulary, and the lengths of their prefixes to ask for."""
    n = min(TOKENS, n_cells(context) - 1)
    for number in range(RUNS if context.facts.is_small else 1):
        raw = Philox(key=[context.seed, number + 1]).random_raw(n) >> np.uint64(33)
        yield (raw % np.uint64(context.facts.n_vocab)).astype(int).tolist(), [*range(1, n + 1)]


def texts_of(context: Context, text: bytes) -> Iterator[bytes]:
    """Yield the text with its words in different orders, cut to a length that is read quickly."""
    words = text.split()
    for number in range(RUNS if context.facts.is_small else 1):
        first = number * len(words) // RUNS
        yield b" ".join(words[first:] + words[:first])[:TOKENS]


def beginnings_of(context: Context, text: bytes) -> tuple[list[int], dict[int, bytes]]:
    """Return the text's ids, and the texts of those prefixes whose ids are the first ids of the
    whole text, by number of ids."""
    every = [text[:n] for n in range(1, len(text) + 1)]
    *rest, ids = context.ask(context.oracle, "tokenize", every)
    lengths = {
        len(own): part for own, part in zip(rest, every, strict=False) if own == ids[: len(own)]
    }
    lengths.pop(0, None)
    most = n_cells(context)
    return ids, {n: part for n, part in sorted(lengths.items()) if n < most}


def closest(context: Context, runs: Iterable[tuple[list[int], list[int]]]) -> list[Beginning]:
    """Return the closest calls, the smallest margin first. runs: ids, with the prefix lengths that
    can be asked for."""
    found: list[tuple[float, int, Beginning]] = []
    number = count()  # orders equal margins, so that no two `Beginning`s are compared
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
                if len(found) > (ASKED if context.facts.is_small else ASKED // 2):
                    heapq.heappop(found)
    return [one for *_, one in sorted(found, reverse=True)]


def margin_of(row: F32) -> float:
    """Return the margin of the largest logit over the next; 0.0 if some logits are not finite."""
    if len(row) < 2 or not np.isfinite(row).all():
        return 0.0
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


def allowed_in(context: Context, row: F32) -> float:
    return between_two(context.noise.relative, row)


def said_behind(
    context: Context, close: Sequence[Beginning], question: str, given: Callable[[Beginning], Any]
) -> tuple[list[tuple[Beginning, Any]], LeftOut | None]:
    """Return the subject's next token after each prefix, and the reason why longer prefixes have no
    answer. question: the name of the question; given: a function that makes the question's argument
    from a prefix."""
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
    """Yield the verdict on an engine without a fault. n: the number of answers; same: the
    beginnings with the same token; ties: the number of ties. One honest design explains all other
    answers."""
    if not n:
        text = "no two tokens are close and still further apart than the noise of honest runs"
        yield context.verdict(suite, "not-applicable", text)
        return
    parts, others = [], n - len(same) - ties
    if same:
        parts += [f"the next token is the same after {len(same)} prompts with {in_words(same)}"]
    if ties:
        parts += [f"after {ties} prompts it differs within the noise"]
    if others:
        parts += [f"after {others} prompts it is the choice of honest runs of another design"]
    status: Status = "agreed" if same else "excused"
    detail = {"close": len(same), "ties": ties, "others": others}
    yield context.verdict(suite, status, ", ".join(parts), detail)


def in_words(close: Sequence[Beginning]) -> str:
    size = max((largest(one.logits) for one in close), default=1.0) or 1.0
    first, last = (one.margin / size for one in (close[0], close[-1]))
    return f"margins of {first:.1e} to {last:.1e} of the largest logit"


def next_tokens(context: Context) -> Iterator[Verdict]:
    """Yield verdicts on the next token after each prefix of seeded tokens, for an engine without
    lists. A single greedy text may stay right despite large errors."""
    if context.facts.decoder_start is not None or "logprobs" in (context.subject_info.levels or ()):
        return
    ids = context.tokens[: min(context.n_tokens, MOST_BEGINNINGS)]
    ends = [*range(1, len(ids) + 1)]
    ids, more, left = longer(context, ids, "greedy")
    ends += more
    if left:
        yield left.verdict(context, "decode")
    batches = batches_behind(context, ids, ends)
    logits = oracles_logits(context, batches)
    if logits is None:
        yield context.verdict("decode", "not-compared", WRONG_ORACLE)
        return
    if why := why_any_choice_agrees(context, logits):
        yield context.verdict("decode", "not-compared", why)
        return
    context.progress(f"the next token after {len(ends)} beginnings")
    said = [context.ask(context.subject, "greedy", ids[:n], 1)[0] for n in ends]
    margins = logits.max(axis=1) - logits[np.arange(len(ends)), said]
    allowed = between_two_in_rows(context.noise.relative, logits)
    if (margins > allowed).any():
        allowed = between_two_in_rows(context.noise_on(batches), logits)
    if not np.isfinite(allowed).all():
        yield context.verdict("decode", "not-compared", NO_LIMIT)
        return
    n_same = int((logits.argmax(axis=1) == said).sum())
    text = f"the next token is the same after {n_same} of {len(ends)} seeded beginnings"
    detail: dict[str, Any] = {"beginnings": len(ends), "same": n_same}
    detail["allowed"] = float(allowed.max())
    wrong = np.flatnonzero(margins > allowed)
    if not wrong.size:
        others = ", and a tie within the noise after the others"
        text += of_one_choice(said) if n_same == len(ends) else others
    elif is_honest(context, batches, partial(nearly_chosen, said)):
        text += f", and after all {AS_NEAR}"
    else:
        first = int(wrong[0])
        text, of_it = other_choice(logits[first], said[first], float(allowed[first]))
        text = f"after the first {ends[first]} seeded tokens {text}"
        text += f"; wrong after {wrong.size} of {len(ends)} beginnings"
        detail |= of_it | {"step": ends[first] - 1}
        yield context.verdict("decode", "diverged", text, detail, key=("decode", "token"))
        return
    yield context.verdict("decode", "agreed" if n_same else "excused", text, detail)


def of_one_choice(chosen: Sequence[int]) -> str:
    """Return a note if the model's next token is always the same, as with random weights and large
    biases. Such a model does not show if the engine reads its prompts."""
    if len(chosen) < 2 or len(set(chosen)) > 1:
        return ""
    return f": always {chosen[0]}, whatever the prompt, so this shows little"


def close_calls(context: Context) -> Iterator[Verdict]:
    """Yield verdicts on next tokens whose two largest logits are close, but further apart than the
    noise."""
    if context.facts.decoder_start is not None or "logprobs" in (context.subject_info.levels or ()):
        return
    context.progress("looking for beginnings with two close next tokens")
    close = closest(context, seeded_runs(context))
    answers, left = said_behind(context, close, "greedy", lambda one: list(one.ids))
    same = [one for one, (said,) in answers if said == one.chosen]
    others = [(one.behind_best(said), said, one) for one, (said,) in answers if said != one.chosen]
    ties, designs = 0, None
    for margin, said, one in sorted(others, key=itemgetter(0), reverse=True):
        allowed = between_two(context.noise_on(one.batches), one.logits)
        if not np.isfinite(allowed):
            yield context.verdict("decode", "not-compared", NO_LIMIT)
            return
        if margin <= allowed:
            ties += 1
            continue
        chosen = partial(nearly_chosen, [said])
        if designs := [*designs_that_say(context, one.batches, chosen, designs)]:
            continue
        if oracles_logits(context, one.batches) is None:
            yield context.verdict("decode", "not-compared", WRONG_ORACLE)
            return
        text, detail = other_choice(one.logits[0], said, allowed)
        text = f"after {len(one.ids)} seeded tokens {text}"
        detail |= {"step": len(one.ids) - 1, "ids": one.ids}
        yield context.verdict("decode", "diverged", text, detail, key=("decode", "token"))
        return
    if left:
        yield left.verdict(context, "decode")
    yield from said_of(context, "decode", len(answers), same, ties)
