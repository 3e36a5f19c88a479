"""Independence of prompts: does an engine read each prompt separately and completely?

On a real quantised model, the likeliest token seldom leads by more than honest runs differ. So a
different token proves nothing for most prompts. Therefore both engines get the model's first layer
in F32, and several prompts one after another. A large model generates only a short text, so its
first layer also generates a long text. The first layer of a small model generates a long text too,
because an engine's text may come from a loop that counts positions wrongly. The limit for a short
text would excuse this fault.
"""

from collections.abc import Iterator
from dataclasses import replace

from lockstep.engine.batch import steps_of
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.asking import holds_quantised
from lockstep.harness.blackbox.changes import times
from lockstep.harness.blackbox.parts import LARGER
from lockstep.harness.blackbox.probes import asked_to_choose
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import (
    is_values,
    slice_of,
    what_attention_adds,
    within,
)
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context
from lockstep.harness.records import MADE_MODEL, Verdict
from lockstep.harness.suites.decode import LONGER, Decode, greedy_alone, of_the_whole
from lockstep.harness.suites.parts.prompts import N_OTHERS, prompt_that_fills
from lockstep.harness.suites.parts.prompts_in_turn import in_turn
from lockstep.harness.suites.text import behind

WHERE = "on the model's first layer in F32 "
# number of prompts, because an engine that drops tokens may choose rightly after some of them
LONG_TEXTS = 4
TEXTS = "text"  # name of the suite for engines that show only text


def check_own_prompts(plan: Plan, context: Context) -> Iterator[Verdict]:
    yield from asked_to_choose(plan, context, "prompts in turn", first_layer, judge_prompts)


def text_checked(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Check a text on a quantised model's first layer in F32, where the limit is narrower. The
    limit for the model's own text hides more faults."""
    if holds_quantised(context.file):
        yield from asked_to_choose(plan, context, "a text in F32", first_layer, text_said)


def check_long_prompts(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Ask an engine of text for long prompts."""
    yield from asked_to_choose(
        plan, context, "long prompts", first_layer, judge_texts, level="generate", suite=TEXTS
    )


def judge_texts(outer: Context, context: Context) -> Iterator[Verdict]:
    """Yield the verdicts on the texts after long prompts. A text that cannot be compared counts as
    not applicable: an untrained model may end it anywhere."""
    for prompt in filter(None, (prompt_that_fills(context, i) for i in range(LONG_TEXTS))):
        for verdict in behind(context, prompt, N_OTHERS):
            text = f"{WHERE}after a prompt of {len(prompt)} bytes: {verdict.summary}"
            detail, key = {**verdict.detail, MADE_MODEL: True}, verdict.key.split("/")
            besides = verdict.status == "not-compared"
            status = "not-applicable" if besides else verdict.status
            yield outer.verdict(TEXTS, status, text, detail, key)
            if verdict.status == "diverged":
                return


def text_said(outer: Context, context: Context) -> Iterator[Verdict]:
    """Yield the verdicts on a text. A text that cannot be compared counts as not applicable."""
    for verdict in longer_text(outer, context, right=1):
        besides = verdict.status == "not-compared"
        yield replace(verdict, status="not-applicable") if besides else verdict


def first_layer(file: GgufFile) -> Recipe:
    """Return the recipe of the first layer, with strong attention, so that the next token does not
    depend on the last token alone."""
    stems = {name: name.split(".")[2] for name in within(file, 0)}
    adds = what_attention_adds(set(stems.values()))
    loud = {name: times(LARGER) for name, stem in stems.items() if is_values(name) and stem in adds}
    return slice_of(file, 0, role={}, changes=loud)


def judge_prompts(outer: Context, context: Context) -> Iterator[Verdict]:
    for verdict in in_turn(outer, context, WHERE):
        yield replace(verdict, detail={**verdict.detail, MADE_MODEL: True})
    if of_the_whole(outer) < outer.n_steps:
        yield from longer_text(outer, context, right=of_the_whole(outer))


def longer_text(outer: Context, context: Context, *, right: int) -> Iterator[Verdict]:
    """Yield a verdict on a text of the full length, which the probe model generates. The verdict is
    for a large model, whose own text has fewer tokens. right: a difference before this step is not
    reported."""
    prompt = Decode().prompt(context)
    oracle, subject = context.ask_both("greedy", prompt, outer.n_steps)
    batches = steps_of(prompt, oracle, context.facts.decoder_start)
    found = list(greedy_alone(context, prompt, batches, oracle, subject))
    wrong = next((verdict for verdict in found if verdict.status == "diverged"), None)
    if wrong and wrong.detail["step"] < right:
        return
    last = wrong or found[-1]
    detail, key = {**last.detail, MADE_MODEL: True}, LONGER.split("/")
    yield outer.verdict("decode", last.status, f"{WHERE}{last.summary}", detail, key)
