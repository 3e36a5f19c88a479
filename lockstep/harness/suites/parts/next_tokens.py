"""The next token behind many beginnings, of an engine that says no more of what it computes."""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from lockstep.harness.context.further_runs import batches_behind, longer
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.tolerances import between_two, between_two_in_rows
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts.close_calls import closest, said_behind, said_of, seeded_runs
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
    text = f"the next token behind {n_same} of {len(ends)} seeded beginnings is the same"
    detail: dict[str, Any] = {"beginnings": len(ends), "same": n_same}
    detail["allowed"] = float(allowed.max())
    wrong = np.flatnonzero(margins > allowed)
    if not wrong.size:
        others = ", and a tie within the noise behind the others"
        text += of_one_choice(said) if n_same == len(ends) else others
    elif is_honest(context, batches, partial(nearly_chosen, said)):
        text += f", and behind all {AS_NEAR}"
    else:
        first = int(wrong[0])
        text, of_it = other_choice(logits[first], said[first], float(allowed[first]))
        text = f"behind the first {ends[first]} seeded tokens {text}"
        text += f"; wrong behind {wrong.size} of {len(ends)} beginnings"
        detail |= of_it | {"step": ends[first] - 1}
        yield context.verdict("decode", "diverged", text, detail, key=("decode", "token"))
        return
    yield context.verdict("decode", "agreed" if n_same else "excused", text, detail)


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
        text = f"behind {len(one.ids)} seeded tokens {text}"
        detail |= {"step": len(one.ids) - 1, "ids": one.ids}
        yield context.verdict("decode", "diverged", text, detail, key=("decode", "token"))
        return
    if left:
        yield left.verdict(context, "decode")
    yield from said_of(context, "decode", len(answers), same, ties)
