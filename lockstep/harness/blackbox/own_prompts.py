"""Does an engine read each prompt for itself, and all of it?

On a real quantised model the likeliest token is seldom likelier by more than honest runs differ, so
that of most prompts nothing follows from another answer. So both engines are given the model's
first layer in F32, and prompts in turn, of which the oracle's answer depends on their beginning and
on which one is asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.blackbox.changes import times
from lockstep.harness.blackbox.choosing import SUITE, asked_to_choose, chosen_behind
from lockstep.harness.blackbox.parts import LARGER
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import (
    ATTENTION_OUT,
    is_values,
    slice_of,
    within,
)
from lockstep.harness.check.check import Plan
from lockstep.harness.context.further_runs import many_ids, n_cells
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Answered, Request, Verdict
from lockstep.harness.suites.parts.close_calls import is_honest

LENGTHS = ((37, 3), (59, 2))  # of prompts, and how many of each: of two sizes, one beyond 32 by far
KEPT = 32  # tokens that are left of a prompt that is cut
TRIED = 24  # seeded prompts of each length
WHERE = "on the model's first layer in F32"


@dataclass(frozen=True, kw_only=True)
class TellingPrompt:
    """logits: the oracle's behind it."""

    ids: list[int]
    logits: F32

    @property
    def wanted(self) -> int:
        return int(self.logits.argmax())


def checked(plan: Plan, context: Context) -> Iterator[Verdict]:
    yield from asked_to_choose(plan, context, "prompts in turn", first_layer, said)


def first_layer(file: GgufFile) -> Recipe:
    """With what attention adds made large, or the last token alone decides what comes next."""
    loud = {
        name: times(LARGER)
        for name in within(file, 0)
        if is_values(name) and name.split(".")[2] in ATTENTION_OUT
    }
    return slice_of(file, 0, role={}, changes=loud)


def said(outer: Context, context: Context) -> Iterator[Verdict]:
    """Nothing where fewer than two prompts tell, or one of them is refused."""
    prompts, ties = telling_prompts(context), 0
    if len(prompts) < 2 or chosen_behind(context, prompts[0].ids[:1]) is None:
        return
    for number, prompt in enumerate(prompts, 1):
        found = chosen_behind(context, prompt.ids)
        if found is None:
            return
        if found == prompt.wanted:
            continue
        if not may_be(context, prompt, found):
            which = f"prompt {number} of {len(prompts)} in turn, of {len(prompt.ids)} tokens"
            yield another(outer, prompt, found, which, is_right_alone(context, prompt))
            return
        ties += 1
    text = f"{WHERE} the token behind {len(prompts)} prompts in turn is the same"
    text += f", but behind {ties} one that an honest engine may choose" * bool(ties)
    if ties < len(prompts):
        yield outer.verdict(SUITE, "agreed", text)


def is_right_alone(context: Context, prompt: TellingPrompt) -> bool:
    """Asked right behind its own first token, of which nothing can be kept that is not its own."""
    first = chosen_behind(context, prompt.ids[:1])
    return first is not None and chosen_behind(context, prompt.ids) == prompt.wanted


def may_be(context: Context, prompt: TellingPrompt, found: int) -> bool:
    """Whether an honest engine may choose this one."""
    batches = (Batch.for_next(prompt.ids),)
    if not 0 <= found < len(prompt.logits):
        return False

    def chosen(run: F32, room: float) -> bool:
        return bool(run[-1].max() - run[-1, found] <= room)

    allowed = 2 * float(whole_run(context.noise_on(batches), largest(prompt.logits)).allowed)
    return chosen(prompt.logits[None], allowed) or is_honest(context, batches, chosen)


def another(
    context: Context, prompt: TellingPrompt, found: int, which: str, alone: bool
) -> Verdict:
    how = "right" if alone else "wrong as well"
    look = "whether such a prompt is cut, or taken for one as long"
    if alone:
        look = "what is kept of a prompt for the next"
    text = (
        f"{WHERE}, behind {which}, the next is {found}, the oracle's {prompt.wanted}; asked right "
        f"behind its own first token it is {how}: look at {look}"
    )
    detail = {"at_fault": "subject", "expected": prompt.wanted, "actual": found}
    return context.verdict(SUITE, "diverged", text, detail, key=(SUITE, "other prompt"))


def telling_prompts(context: Context) -> list[TellingPrompt]:
    """By far the likeliest behind each is another one than behind the prompt before, than behind
    that with this one's last token, and, of a longer one, than behind what a cut would leave."""
    room = n_cells(context) - 1
    found: list[TellingPrompt] = []
    ids = iter(many_ids(context, TRIED * sum(n for n, _ in LENGTHS)))
    for n, wanted in LENGTHS:
        tried = (list(islice(ids, n)) for _ in range(TRIED if n <= room else 0))
        telling = (p for one in tried if (p := telling_prompt(context, one, found)) is not None)
        for prompt in islice(telling, wanted):
            found.append(prompt)
    return found


def telling_prompt(
    context: Context, ids: list[int], before: Sequence[TellingPrompt]
) -> TellingPrompt | None:
    row = logits_behind(context, ids)
    if row is None or not np.isfinite(row).all() or len(row) < 2:
        return None
    prompt = TellingPrompt(ids=ids, logits=row)
    second, first = np.partition(row, -2)[-2:]
    if not first - second > 2 * float(whole_run(context.noise.relative, largest(row)).allowed):
        return None
    others = [ids[-KEPT:]] if len(ids) > LENGTHS[0][0] else []
    if before:
        others += [before[-1].ids, [*before[-1].ids[: len(ids) - 1], ids[-1]]]
    rows = [logits_behind(context, other) for other in others]
    if any(other is None or int(other.argmax()) == prompt.wanted for other in rows):
        return None
    return prompt


def logits_behind(context: Context, ids: Sequence[int]) -> F32 | None:
    """None: the oracle does not answer."""
    outcome = context.oracle.ask("evaluate", Request(batches=(Batch.for_next(ids),)))
    return outcome.value.logits[0][-1] if isinstance(outcome, Answered) else None
