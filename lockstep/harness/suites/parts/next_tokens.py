"""The next token behind many beginnings, of an engine that says no more of what it computes."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.harness.context.further_runs import batches_behind, longer
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.tolerances import between_two, between_two_in_rows
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts.close_calls import (
    AS_NEAR,
    Beginning,
    closest,
    designs_that_say,
    is_honest,
    said_behind,
    said_of,
    seeded_runs,
)
from lockstep.harness.suites.parts.oracles_logits import (
    WRONG_ORACLE,
    oracles_logits,
    why_any_choice_agrees,
)

NO_LIMIT = "honest runs of this model overflow, so that no limit can be given for its tokens"
MOST_BEGINNINGS = 32  # behind each of which an engine is asked for one token


def next_tokens(context: Context) -> Iterator[Verdict]:
    """The next token behind each beginning of the seeded tokens, of an engine that has no list of
    candidates either: a greedy text alone stays on its way with a good deal wrong."""
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
    context.progress(f"the next token behind {len(ends)} beginnings")
    said = [context.ask(context.subject, "greedy", ids[:n], 1)[0] for n in ends]
    margins = logits.max(axis=1) - logits[np.arange(len(ends)), said]
    allowed = between_two_in_rows(context.noise.relative, logits)
    if (margins > allowed).any():
        allowed = between_two_in_rows(context.noise_on(batches), logits)
    if not np.isfinite(allowed).all():
        yield context.verdict("decode", "not-compared", NO_LIMIT)
        return
    n_same = int((logits.argmax(axis=1) == said).sum())
    detail: dict[str, Any] = {"beginnings": len(ends), "same": n_same}
    detail["allowed"] = float(allowed.max())
    wrong = np.flatnonzero(margins > allowed)
    if wrong.size and is_honest(context, batches, partial(nearly_chosen, said)):
        text = f"the next token behind {n_same} of {len(ends)} seeded beginnings is the same, and "
        text += f"behind all {AS_NEAR}"
        yield context.verdict("decode", "agreed" if n_same else "excused", text, detail)
        return
    if not wrong.size:
        text = f"the next token behind {n_same} of {len(ends)} seeded beginnings is the same"
        others = ", and a tie within the noise behind the others"
        text += of_one_choice(said) if n_same == len(ends) else others
        yield context.verdict("decode", "agreed" if n_same else "excused", text, detail)
        return
    first = int(wrong[0])
    detail |= {"step": ends[first] - 1, "at_fault": "subject", "margin": float(margins[first])}
    detail |= {"expected": int(logits[first].argmax()), "actual": said[first]}
    detail["allowed"] = float(allowed[first])
    text = (
        f"behind the first {ends[first]} seeded tokens the next is {said[first]}, the oracle's "
        f"{detail['expected']}, which it likes better by {margins[first]:.2g} (allowed "
        f"{allowed[first]:.2g}); wrong behind {wrong.size} of {len(ends)} beginnings"
    )
    yield context.verdict("decode", "diverged", text, detail, key=("decode", "token"))


def of_one_choice(chosen: Sequence[int]) -> str:
    """A model whose next token is the same whatever it reads, as one of random weights with large
    biases is: whether prompts are read at all its tokens do not show."""
    if len(chosen) < 2 or len(set(chosen)) > 1:
        return ""
    return f": {chosen[0]} behind each of them, whatever is read, which shows little"


def close_calls(context: Context) -> Iterator[Verdict]:
    """The next token where the two likeliest are nearly alike, and not within the noise."""
    if context.facts.decoder_start is not None or "logprobs" in (context.subject_info.levels or ()):
        return
    context.progress("looking for beginnings behind which two tokens are nearly alike")
    close = closest(context, seeded_runs(context))
    answers, left = said_behind(context, close, "greedy", lambda one: list(one.ids))
    same = [one for one, (said,) in answers if said == one.chosen]
    others = [(one, said) for one, (said,) in answers if said != one.chosen]
    ties, designs = 0, None
    for one, said in sorted(others, key=lambda other: behind_the_best(*other), reverse=True):
        margin = behind_the_best(one, said)
        allowed = between_two(context.noise_on(one.batches), one.logits)
        if not np.isfinite(allowed):
            yield context.verdict("decode", "not-compared", NO_LIMIT)
            return
        if margin <= allowed:
            ties += 1
            continue
        chosen = partial(nearly_chosen, [said])
        if designs := designs_that_say(context, one.batches, chosen, designs):
            continue
        if oracles_logits(context, one.batches) is None:
            yield context.verdict("decode", "not-compared", WRONG_ORACLE)
            return
        detail = {"step": len(one.ids) - 1, "at_fault": "subject", "margin": margin}
        detail |= {"expected": one.chosen, "actual": said, "allowed": allowed, "ids": one.ids}
        text = (
            f"behind {len(one.ids)} seeded tokens the next is {said}, the oracle's {one.chosen}, "
            f"which it likes better by {margin:.2g} (allowed {allowed:.2g})"
        )
        yield context.verdict("decode", "diverged", text, detail, key=("decode", "token"))
        return
    if left:
        yield left.verdict(context, "decode")
    yield from said_of(context, "decode", len(answers), same, ties)


def behind_the_best(one: Beginning, token: int) -> float:
    return float(one.logits[0].max() - one.logits[0, token])


def nearly_chosen(tokens: Sequence[int], run: F32, allowed: NDArray[np.float64]) -> bool:
    """tokens: one behind each row, from the first on; allowed: in each row."""
    rows = np.arange(len(tokens))
    return bool((run[rows].max(axis=1) - run[rows, list(tokens)] <= allowed[rows]).all())
