"""Does an engine read each prompt for itself, and all of it, on a model on which that shows?

On a real quantised model the likeliest token is seldom likelier by more than honest runs differ, so
that of most prompts nothing follows from another answer. So both engines are given the model's
first layer in F32, and prompts in turn; of a large model, of which a short text is generated, they
are asked for a long one as well.
"""

from collections.abc import Iterator

from lockstep.engine.batch import steps_of
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.changes import times
from lockstep.harness.blackbox.choosing import asked_to_choose
from lockstep.harness.blackbox.parts import LARGER
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import (
    ATTENTION_OUT,
    is_values,
    slice_of,
    within,
)
from lockstep.harness.check.check import Plan
from lockstep.harness.check.generated import STEPS
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.context.suite import Context
from lockstep.harness.records import Verdict
from lockstep.harness.suites.decode import Decode, greedy_alone
from lockstep.harness.suites.parts.prompts_in_turn import in_turn

WHERE = "on the model's first layer in F32 "


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
    yield from in_turn(outer, context, WHERE)
    if outer.n_steps < STEPS and not is_small(outer.file):
        yield longer_text(outer, context)


def longer_text(outer: Context, context: Context) -> Verdict:
    """As many tokens as are generated of a small model: of a large one the first few are."""
    prompt = Decode().prompt(context)
    oracle, subject = context.ask_both("greedy", prompt, STEPS)
    batches = steps_of(prompt, oracle, context.facts.decoder_start)
    found = list(greedy_alone(context, prompt, batches, oracle, subject))
    wrong = next((verdict for verdict in found if verdict.status == "diverged"), None)
    if wrong and wrong.detail["step"] < outer.n_steps:  # where that of the whole model is right
        text = f"a text of {STEPS} tokens {WHERE}is another from token {wrong.detail['step']} on"
        return outer.verdict("decode", "not-applicable", f"{text}: it may take no other model")
    last = wrong or found[-1]
    text = f"{WHERE}{last.summary}"
    return outer.verdict("decode", last.status, text, {**last.detail}, ("decode", "longer text"))
