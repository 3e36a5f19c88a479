"""Prompts one after the other: does an engine read each prompt independently and completely?

The next token of each prompt depends on its beginning, and differs from the token of the prompt
before. So an engine gives a different answer if it truncates a prompt, confuses it with another
prompt of the same length or ending, or reuses too much of the previous prompt.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.further_runs import batches_behind, many_ids, n_cells
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.tolerances import between_two, between_two_in_rows
from lockstep.harness.records import (
    Answered,
    Crashed,
    Rejected,
    Request,
    Unanswerable,
    Verdict,
)
from lockstep.harness.suites.parts.oracles_logits import is_honest, nearly_chosen

SUITE = "decode"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The form of one prompt. n: the number of its tokens; begin, end: how many tokens it shares
    with the beginning and the end of the previous prompt."""

    n: int
    begin: int = 0
    end: int = 0

    @property
    def n_tried(self) -> int:
        """Return the number of prompts to try, which is larger for rare kinds."""
        return MORE if self.n > LONG or self.begin else TRIED

    @property
    def is_between(self) -> bool:
        return bool(self.begin and self.end)


# the previous prompt again: the cache holds all of it, and nothing is left to compute
AGAIN = Turn(n=0)
# Some prompts have the same length, and some are much longer than what a cut leaves. Two pairs
# share a beginning: up to the middle, or up to the last two tokens, where an engine that reuses one
# token too many reads a wrong token. One pair differs only in the first tokens, because an engine
# may look up blocks of 16 by their own tokens alone. One prompt has the same first and last tokens
# as the previous one, as chat templates produce.
PROMPTS = (
    *(Turn(n=37), Turn(n=37), AGAIN, Turn(n=37)),
    *(Turn(n=59), Turn(n=59, begin=29), Turn(n=59, begin=57), Turn(n=59, end=27)),
    *(Turn(n=59, begin=19, end=6), Turn(n=97), Turn(n=199)),
    Turn(n=491),
)
KEPT = (32, 64, 128, 384)  # number of tokens that an engine may keep of a long prompt
# number of tokens that an engine may keep at the beginning, if it drops the middle of a long prompt
# and keeps half a context in all
IN_FRONT = (0, 4, 64, 128)
CUT = 16  # least number of tokens that the cut removes; fewer hardly matter
TRIED = 24  # seeded prompts for each turn
MORE = 72  # seeded prompts for turns of which fewer prompts are telling
# length in tokens; longer prompts are prefixes of one run, which the oracle reads in one batch
LONG = 64
ENDS = 12  # number of prefixes of each run
NEARLY = 8  # telling prompts among which one is sought that also reveals one reused token too many
LONGEST = "longest"  # key in `detail` of a verdict: the number of tokens of the longest prompt
SAME = "repeats the one before"
BEGINS, ENDS_SO = "begins like the one before", "ends like the one before"
BOTH = "begins and ends like the one before"
PLURAL = {BEGINS: "begin like the one before"}


@dataclass(frozen=True, kw_only=True)
class TellingPrompt:
    """A prompt that reveals a wrong cache hit. logits: the oracle's logits after it; like: what it
    shares with the previous prompt, in words."""

    ids: list[int]
    logits: F32
    like: str = ""

    @property
    def wanted(self) -> int:
        return int(self.logits.argmax())


def in_turn(outer: Context, context: Context, where: str = "") -> Iterator[Verdict]:
    """Ask the prompts one after the other, and yield the verdict. Yield no verdict if fewer than
    two prompts are telling, or if the engine refuses the first questions. outer: the context of the
    user's model, in which verdicts are made; context: the context of the tested model, which may be
    different."""
    prompts = telling_prompts(context)
    if len(prompts) < 2 or chosen_behind(context, prompts[0].ids[:1]) is None:
        return
    # A prompt that fills the context makes a circular cache overwrite its beginning. An engine may
    # refuse this prompt. If the engine crashes on a made model, the remaining prompts are asked
    # anyway.
    filled = context.subject.ask("greedy", many_ids(context, n_cells(context) - 1), 1)
    if outer is context and isinstance(filled, Crashed):
        context.answer(context.subject, "greedy", filled)  # raises NoAnswer
    asked: list[TellingPrompt] = []
    ties = 0
    for number, prompt in enumerate(prompts, 1):
        found = chosen_behind(context, prompt.ids)
        if found is None:
            break
        asked.append(prompt)
        if found == prompt.wanted:
            continue
        if not may_be(context, prompt, found):
            which = f"prompt {number} of {len(prompts)} in turn, of {len(prompt.ids)} tokens"
            which += f", which {prompt.like}" if prompt.like else ""
            before = asked[-2] if len(asked) > 1 else None
            yield from differing(context, outer, prompt, found, f"{where}after {which}", before)
            return
        ties += 1
    if len(asked) > max(1, ties):
        detail = {LONGEST: max(len(prompt.ids) for prompt in asked)}
        yield outer.verdict(SUITE, "agreed", where + the_same(asked, ties), detail)


def the_same(asked: Sequence[TellingPrompt], ties: int) -> str:
    lengths = [len(prompt.ids) for prompt in asked]
    text = f"the next token is the same after {len(asked)} prompts in turn"
    text += f", of {min(lengths)} to {max(lengths)} tokens"
    alike = Counter(prompt.like for prompt in asked if prompt.like)
    words = [f"{n} {PLURAL.get(like, like) if n > 1 else like}" for like, n in alike.items()]
    text += f", of which {', '.join(words)}" if words else ""
    return text + f"; after {ties} it differs as an honest engine may" * bool(ties)


def chosen_behind(context: Context, ids: Sequence[int]) -> int | None:
    """Return the subject's next token after the ids. Return None if the subject refuses them,
    because it may refuse ids without a text, or too many ids. Raises NoAnswer if it fails."""
    outcome = context.subject.ask("greedy", list(ids), 1)
    if isinstance(outcome, Unanswerable | Rejected):
        return None
    (found,) = context.answer(context.subject, "greedy", outcome)
    return int(found)


def differing(
    context: Context,
    outer: Context,
    prompt: TellingPrompt,
    found: int,
    where: str,
    before: TellingPrompt | None,
) -> Iterator[Verdict]:
    """Yield the verdict on a prompt with a wrong token, even if the engine dies at the next
    question. found: the wrong token."""
    alone, steady = None, True
    try:
        alone = is_right_alone(context, prompt)
        if alone and before is not None:
            # this prompt begins with another token, so the cache keeps nothing of `prompt`
            chosen_behind(context, [(prompt.ids[0] + 1) % len(prompt.logits)])
            chosen_behind(context, before.ids)
            steady = chosen_behind(context, prompt.ids) != prompt.wanted
    except NoAnswer:
        yield another(outer, prompt, found, where, alone)
        raise
    yield another(outer, prompt, found, where, alone, steady=steady)


def is_right_alone(context: Context, prompt: TellingPrompt) -> bool:
    """Return True if the answer is right directly after a prompt of one token, which is the
    prompt's own first token or a different token. The engine then has only this token in its
    cache."""
    first = prompt.ids[0]
    before = (first, (first + 1) % len(prompt.logits))
    return any(
        chosen_behind(context, [one]) is not None
        and chosen_behind(context, prompt.ids) == prompt.wanted
        for one in before
    )


def may_be(context: Context, prompt: TellingPrompt, found: int) -> bool:
    """Return True if an honest engine may choose this token."""
    batches = (Batch.for_next(prompt.ids),)
    if not 0 <= found < len(prompt.logits):
        return False
    chosen, own = partial(nearly_chosen, [found], first=-1), prompt.logits[None]
    allowed = between_two_in_rows(context.noise_on(batches), own)
    return chosen(own, allowed) or is_honest(context, batches, chosen)


def another(
    context: Context,
    prompt: TellingPrompt,
    found: int,
    which: str,
    alone: bool | None,
    *,
    steady: bool = True,
) -> Verdict:
    """Return the verdict on a wrong token after a prompt. alone: True if the token is right
    directly after a prompt of one token, None if there is no answer; steady: the token is wrong
    again after the same previous prompt."""
    how = {True: "right", False: "wrong as well", None: "not answered"}[alone]
    look = "prompts that are cut, or mistaken for one of the same length"
    if alone:
        look = "the prompt cache"
        if not steady:  # with a race between threads, the token is right most of the time
            look += (
                ", or at memory that threads share: asked again after the same prompt, "
                "the token is "
            )
            look += "right as well"
    elif 0 <= found < len(prompt.logits):  # then a small error of each run may be the cause
        margin = prompt.logits[prompt.wanted] - prompt.logits[found]
        look += f", and at the errors of logits, as the oracle's choice leads by only {margin:.2g}"
    text = (
        f"{which}, the engine chooses token {found}, and the oracle chooses {prompt.wanted}; "
        f"asked directly after a prompt of one token, it is {how}: look at {look}"
    )
    detail = {"at_fault": "subject", "expected": prompt.wanted, "actual": found, "asked": which}
    return context.verdict(SUITE, "diverged", text, detail, key=(SUITE, "other prompt"))


def telling_prompts(context: Context) -> list[TellingPrompt]:
    """Return prompts with a clear next token. The next token must be different after the previous
    prompt, after the previous prompt with this prompt's last token, and after a truncated
    prompt."""
    room = n_cells(context) - 1
    found: list[TellingPrompt] = []
    sizes = [turn.n * turn.n_tried for turn in PROMPTS if not turn.is_between]
    drawn = many_ids(context, sum(sizes))  # prompts in between use ids that the others leave
    ids, new = iter(drawn), reversed(drawn)  # new: ids after the shared beginning
    for turn in PROMPTS:
        if turn.n > room:
            break
        if turn is AGAIN:
            found += [replace(one, like=SAME) for one in found[1:]][-1:]
            continue
        runs = candidates(context, turn, found[-1:], new if turn.begin else ids)
        tried = islice(runs, turn.n_tried // (ENDS if turn.n > LONG else 1))
        telling = (one for run in tried for one in those_that_tell(context, run, found[-1:]))
        best = best_of(context, telling, turn, found[-1:])
        if not (best or turn.begin or turn.end):
            room = turn.n - 1
        found += best
    return found


def best_of(
    context: Context, telling: Iterator[TellingPrompt], turn: Turn, before: Sequence[TellingPrompt]
) -> list[TellingPrompt]:
    """Return the best prompt in a list. Among prompts that share a beginning with the previous
    prompt, the best is the first whose next token changes if an engine reuses one cached token too
    many. Several prompts are tried, because the previous prompt's cache may compensate for the
    wrong token. If no prompt meets this condition, the first prompt is returned."""
    if not (turn.begin and before):
        return list(islice(telling, 1))
    several: list[TellingPrompt] = []
    for one in islice(telling, NEARLY):
        if tells_of_one_more(context, one, before[0]):
            return [one]
        several.append(one)
    return several[:1]


def tells_of_one_more(context: Context, one: TellingPrompt, before: TellingPrompt) -> bool:
    pairs = enumerate(zip(one.ids, before.ids, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), None)
    if same is None:  # one prompt is a prefix of the other
        return False
    kept = [*before.ids[: same + 1], *one.ids[same + 1 :]]
    rows = logits_behind(context, kept, [len(kept)])
    return rows is not None and int(rows[0].argmax()) != one.wanted


def candidates(
    context: Context, turn: Turn, before: Sequence[TellingPrompt], ids: Iterator[int]
) -> Iterator[list[TellingPrompt]]:
    """Yield prompts that may reveal a fault, as lists of beginnings of one run. Yield no more lists
    after the oracle fails to answer."""
    n, last = turn.n, before[0].ids if before else []
    begin, end = last[: turn.begin], last[len(last) - min(turn.end, len(last)) :]
    ends = range(n - ENDS + 1, n + 1) if n > LONG else (n,)
    like = {(True, True): BOTH, (True, False): BEGINS, (False, True): ENDS_SO}.get(
        (bool(begin), bool(end)), ""
    )
    while True:
        run = [*begin, *islice(ids, n - len(begin) - len(end)), *end]
        rows = logits_behind(context, run, ends)
        if rows is None:
            return
        yield [
            TellingPrompt(ids=run[:n_read], logits=row, like=like)
            for n_read, row in zip(ends, rows, strict=True)
        ]


def those_that_tell(
    context: Context, run: Sequence[TellingPrompt], before: Sequence[TellingPrompt]
) -> Iterator[TellingPrompt]:
    """Yield the prompts of a run with a clear next token that differs after every cut of the
    prompt, and after the previous prompt. The oracle reads each cut of the whole run at once. A
    prompt is cut separately only if its token differs in all these cuts."""
    wanted = [last.wanted for last in before]
    left = [one for one in run if is_clear(context, one) and one.wanted not in wanted]
    whole = run[-1].ids
    for cut in cuts_of(context, whole) if len(run) > 1 else ():
        ends = [len(one.ids) - len(whole) + len(cut) for one in left]
        rows = logits_behind(context, cut, ends) if left else None
        if rows is None:
            return
        pairs = zip(left, rows, strict=True)
        left = [one for one, row in pairs if int(row.argmax()) != one.wanted]
    for one in left:
        others = [*cuts_of(context, one.ids)]
        others += [[*last.ids[: len(one.ids) - 1], one.ids[-1]] for last in before]
        every = (logits_behind(context, other, [len(other)]) for other in others)
        if all(rows is not None and int(rows[0].argmax()) != one.wanted for rows in every):
            yield one


def is_clear(context: Context, one: TellingPrompt) -> bool:
    row = one.logits
    if not np.isfinite(row).all() or len(row) < 2:
        return False
    second, first = np.partition(row, -2)[-2:]
    return bool(first - second > between_two(context.noise.relative, row))


def cuts_of(context: Context, ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield the prompt as engines may cut it: its last tokens, or its first tokens and its end. Of
    the numbers of last tokens only the largest is used, because shorter prompts show the smaller
    numbers, and few prompts show all cuts."""
    yield from [[*ids[-n:]] for n in KEPT if n + CUT <= len(ids)][-1:]
    half = n_cells(context) // 2
    if half + CUT <= len(ids):
        yield from ([*ids[:n], *ids[n - half :]] for n in IN_FRONT if n < half)


def logits_behind(context: Context, ids: Sequence[int], ends: Sequence[int]) -> F32 | None:
    """Return the logits after each of these lengths, (ends, vocabulary); None if the oracle does
    not answer."""
    outcome = context.oracle.ask("evaluate", Request(batches=batches_behind(context, ids, ends)))
    return np.concatenate(outcome.value.logits) if isinstance(outcome, Answered) else None
