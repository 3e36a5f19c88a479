"""Parts that only long texts show, tested on a model in which a short text shows them.

Real windows have 128 to 4096 tokens, and long-context factors apply after as many tokens. The run
whose ops are judged is shorter. Further runs of a real model have at most 300 tokens, and limits of
a few percent. So an engine without a window, or with a shorter window, gives the same answers.
Therefore both engines run the model's first layers in F32, with at least one layer for each mask.
This model keeps only the first tokens of a large vocabulary, and replaces some keys
(`long_texts.py`).
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.blackbox.asking import (
    SliceAnswer,
    SliceAsker,
    left_unanswered,
    verdicts_of,
    worst_of,
)
from lockstep.harness.blackbox.first_layers import Layer, check_alike, roles_in
from lockstep.harness.blackbox.long_texts import (
    Keys,
    OnlyInLong,
    fixed_window,
    merge_keys,
    only_in_long,
)
from lockstep.harness.blackbox.offers import ENOUGH, why_not_asked
from lockstep.harness.blackbox.probes import bisect_on_made, on_made_models
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.slices import first_layers, n_layers
from lockstep.harness.check.check import BadInput, Opened, Plan, run_suites
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import STEPS_TRACED, Context, NoAnswer, lacks
from lockstep.harness.locate.segments import shows_tensors
from lockstep.harness.records import Request, Verdict

Way = Callable[[GgufFile, Keys], Recipe]  # makes a model with such keys
SUITE = "long-context"
TOKENS = 32
LARGEST = 1 << 30  # bytes of the model in F32; two engines hold it at once


def check_long_context(plan: Plan, context: Context) -> Iterator[Verdict]:
    every, chunk = unseen(context), fixed_window(context.file)
    if chunk:
        text = f"llama.cpp limits attention to chunks of {chunk} tokens, whatever the file says"
        yield context.verdict(SUITE, "not-applicable", f"{text}: no run is that long")
    if not every:
        if context.named and not chunk:
            text = "no part of the model needs a longer text than the usual run"
            yield context.verdict(SUITE, "not-applicable", text)
        return
    levels, enough = context.subject_info.levels, (*ENOUGH, "embed")
    if reason := why_not_asked(context.subject.name, levels, enough):
        cut = f"lockstep slice {shlex.quote(str(plan.model))} -o short.gguf --short"
        text = f"{' and '.join(each.name for each in every)} {{}} longer than the usual run, and "
        text = text.format("is" if len(every) == 1 else "are")
        text += f"{reason}; to make a model to check: {cut}"
        yield context.verdict(SUITE, "not-applicable", text)
        return
    yield from on_made_models(plan, context, SUITE, partial(ask_beyond_context, context, every))


def unseen(context: Context) -> list[OnlyInLong]:
    """Return the parts that the usual run, whose ops are judged, does not show."""
    usual, cells = context.n_tokens + STEPS_TRACED, context.settings.n_ctx
    every = only_in_long(context.file)
    return [each for each in every if each.length >= (cells if each.of_cells else usual)]


def ask_beyond_context(
    context: Context, every: Sequence[OnlyInLong], asker: SliceAsker
) -> Iterator[Verdict]:
    n, layers = layers_to_ask(asker)
    try:
        for way in ways_to_make(asker, n):
            found = answer_of(asker, way, every)
            if found.worst.status != "not-compared":
                break
    except MakesNothing as error:
        text = f"{describe_runs(every, layers)}: {error}"
        yield context.verdict(SUITE, "not-applicable", text)
        return
    status = found.worst.status  # a made model that an engine refuses does not change the result
    status = "not-applicable" if status == "not-compared" else status
    text = f"{describe_runs(found.asked, layers)}: {found.worst.summary}"
    if found.more:
        text += f": {found.more}"
    yield context.verdict(SUITE, status, text, dict(found.worst.extent), (SUITE, status))


def describe_runs(every: Sequence[OnlyInLong], layers: str) -> str:
    return f"with {', '.join(each.what for each in every)}, {layers}"


class MakesNothing(Exception):
    """Raised if the oracle's answers do not depend on the replaced keys, so that nothing can be
    compared."""


@dataclass(frozen=True, kw_only=True)
class LongAnswer:
    """The answer for long contexts. more: a text that names wrong places, or parts that stay
    invisible."""

    worst: SliceAnswer
    asked: Sequence[OnlyInLong]
    more: str = ""


def answer_of(asker: SliceAsker, way: Way, every: Sequence[OnlyInLong]) -> LongAnswer:
    """Ask both engines about the model of one recipe function, and return the answer. Raises
    MakesNothing."""
    try:
        opened, shown = open_shown(asker, way, every)
    except NoAnswer as error:
        return LongAnswer(worst=left_unanswered(error, asker.plan.oracle), asked=every)
    except BadInput as error:
        worst = SliceAnswer(status="not-compared", summary=str(error))
        return LongAnswer(worst=worst, asked=every)
    try:
        worst = of_run(opened, asker)
        more = ""
        if worst.agrees:
            more = unseen_of(asker, opened, way, shown, worst.allowed)
        elif worst.differs:
            unread = not_read(asker, opened, way, shown, worst.allowed)
            more = ": ".join(filter(None, (unread, places(opened))))
        return LongAnswer(worst=worst, asked=shown, more=more)
    finally:
        opened.close()


def of_run(opened: Opened, asker: SliceAsker) -> SliceAnswer:
    oracle = asker.plan.oracle
    if opened.context.embeddings:
        return worst_of(list(run_suites(opened.context, ("embeddings",))), oracle)
    return worst_of(verdicts_of(opened, (), kept=asker.kept), oracle)


def open_shown(
    asker: SliceAsker, way: Way, every: Sequence[OnlyInLong]
) -> tuple[Opened, Sequence[OnlyInLong]]:
    """Open both engines on the model, with only those keys that change the oracle's answers. The
    subject may depend on further keys. Raises MakesNothing, NoAnswer or BadInput."""
    opened = asker.open(plan_of(asker, way, every))
    try:
        if lacks(opened.context.oracle.ask("evaluate", Request(batches=opened.context.batches))):
            opened.context = opened.context.for_embeddings()
        shown = shown_by_oracle(asker, opened, way, every)
    except BaseException:
        opened.close()
        raise
    if len(shown) == len(every):
        return opened, every
    opened.close()
    if not shown:
        raise MakesNothing(f"{asker.plan.oracle} gives the same logits without this change")
    return open_shown(asker, way, shown)


def plan_of(asker: SliceAsker, way: Way, every: Sequence[OnlyInLong]) -> Plan:
    keys = merge_keys(each.short for each in every)
    return replace(asker.plan_for_made(lambda file: way(file, keys)), n_tokens=TOKENS)


def bisect_long_context(plan: Plan, context: Context) -> Bisection | None:
    """Bisect the run of `check_long_context`, if no op is wrong in the usual runs. Return None if
    no op is wrong in this run either, or if the engine accepts no such model."""
    every = unseen(context)
    if not every:
        return None

    # if such a model is not made, the usual bisection is as good
    def work(asker: SliceAsker) -> Bisection | None:
        n, layers = layers_to_ask(asker)
        for way in ways_to_make(asker, n):
            with suppress(NoAnswer, BadInput, MakesNothing):
                found, shown = bisection_of(asker, way, every)
                asked = describe_runs(shown, layers)
                return replace(found, asked=asked) if found.culprits else None
        return None

    return bisect_on_made(plan, context, work)


def bisection_of(
    asker: SliceAsker, way: Way, every: Sequence[OnlyInLong]
) -> tuple[Bisection, Sequence[OnlyInLong]]:
    opened, shown = open_shown(asker, way, every)
    with closing(opened):
        return bisect(opened.context), shown


def ways_to_make(asker: SliceAsker, n: int) -> Iterator[Way]:
    """Yield functions that make a model of n layers. The first makes an F32 model with few tokens
    of a large vocabulary, if F32 is small enough. The others are for engines that refuse this
    model. They keep the stored types, and the last one keeps all tokens."""

    def in_types(file: GgufFile, keys: Keys) -> Recipe:
        return asker.with_few_tokens(file, first_layers(file, n, keys))

    def in_f32(file: GgufFile, keys: Keys) -> Recipe:
        return replace(in_types(file, keys), stored=frozenset())

    names = first_layers(asker.file, n).names.values()
    if sum(4 * asker.file.tensors[name].n_elements for name in names) <= LARGEST:
        yield in_f32
    yield in_types
    yield lambda file, keys: first_layers(file, n, keys)


def layers_to_ask(
    asker: SliceAsker, least: Callable[[list[Layer]], int] = lambda every: 0
) -> tuple[int, str]:
    """Return the number of layers to test, and a description. The layers include a layer for each
    mask, and one more layer. least: returns the smallest number that the caller accepts. Raises
    Unsupported."""
    total = n_layers(asker.file)
    every = roles_in(asker.plan.model, total)
    masks = [mask for _, mask in every]
    n = min(total, max(least(every), 2 + max(map(masks.index, masks))))
    if n < total:
        made = asker.plan_for_made(lambda file: asker.with_few_tokens(file, first_layers(file, n)))
        check_alike(every, roles_in(made.model, n))
    return n, f"its first {n} of {total} layers"


def shown_by_oracle(
    asker: SliceAsker, opened: Opened, way: Way, every: Sequence[OnlyInLong]
) -> list[OnlyInLong]:
    """Return the parts whose keys change the oracle's run. Raises NoAnswer."""
    noise = opened.context.noise.relative
    return [
        each
        for each in every
        if changed_by(each, each.hidden, asker, opened, way, every) > 2 * noise
    ]


def unseen_of(
    asker: SliceAsker, opened: Opened, way: Way, every: Sequence[OnlyInLong], allowed: float
) -> str:
    """Return a note on the parts that stay invisible although the answers agree. The answers count
    as agreed even if the oracle fails in a further run."""
    try:
        return too_coarse(asker, opened, way, every, allowed)
    except NoAnswer as error:
        return f"mistakes below the limit are unknown: {error}"


def too_coarse(
    asker: SliceAsker, opened: Opened, way: Way, every: Sequence[OnlyInLong], allowed: float
) -> str:
    """Describe the faults that an agreeing engine may still have. With quantised matrices the limit
    can hide an error of more than one token. allowed: the limit as a share of the largest logit.
    Raises NoAnswer."""
    least = max(allowed, 2 * opened.context.noise.relative)
    hidden = [
        each.nearly_what
        for each in every
        if changed_by(each, each.nearly, asker, opened, way, every) <= least
    ]
    return f"{' and '.join(hidden)} would stay below the limit" if hidden else ""


def not_read(
    asker: SliceAsker, opened: Opened, way: Way, every: Sequence[OnlyInLong], allowed: float
) -> str:
    """Name the keys that do not affect the subject's answers. The subject may still be right on the
    user's own model, which no test can show."""
    least, subject = max(allowed, 2 * opened.context.noise.relative), opened.context.subject
    try:
        unread = [
            each.what
            for each in every
            if changed_by(each, each.hidden, asker, opened, way, every, who=subject) <= least
        ]
    except NoAnswer:
        return ""
    if not unread:
        return ""
    text = (
        "the engine's answers do not change with this key: it ignores the key, or has "
        "the number in its code"
    )
    return text if len(unread) == len(every) else f"{text} ({', '.join(unread)})"


def changed_by(
    one: OnlyInLong,
    keys: Keys,
    asker: SliceAsker,
    opened: Opened,
    way: Way,
    every: Sequence[OnlyInLong],
    who: Session | None = None,
) -> float:
    """Return how much outputs change if `keys` replace the short keys of part `one`, as a share of
    the largest output. The reference is the oracle with the replaced keys. who: the engine whose
    outputs are compared, by default the oracle. Raises NoAnswer."""
    context, path = opened.context, asker.folder / "other.gguf"
    others = merge_keys(keys if each is one else each.short for each in every)
    rewrite(asker.file, way(asker.file, others), path)
    with context.runner.open(context.oracle.name, path, context.settings) as session:
        short, other = (outputs_of(each, context) for each in (who or context.oracle, session))
    return float(np.abs(short - other).max() / (np.abs(other).max() or 1.0))


def outputs_of(session: Session, context: Context) -> F32:
    """Return the logits, or the embeddings of a model without logits. Raises NoAnswer."""
    if context.embeddings:
        return np.concatenate(context.ask(session, "embed", context.batches))
    evaluation = context.ask(session, "evaluate", Request(batches=context.batches))
    return np.concatenate(evaluation.logits)


def places(opened: Opened) -> str:
    """Return the sites that are wrong on their own inputs, as text; "" for an engine without
    tensors."""
    if not shows_tensors(opened.context):
        return ""
    found = [v.detail for v in run_suites(opened.context, ("trace",)) if v.status == "diverged"]
    return ", ".join(dict.fromkeys(f"{d['site']}-{d['layer']}" for d in found if "site" in d))
