"""Questions of `check` about probe models, for an engine that shows no tensors within layers.

Whole runs of a quantised model have limits of a few percent, because honest engines convert
activations differently. The F32 twin converts nothing. It shows a fault of the graph whose error is
at least about 1e-5, or 3e-5 after thirty layers. For a large model `check` asks about slices of
layers instead. Lenses show each weight as the engine decodes it. Each layer's matrices are tested
at their places (in_place.py). For any model, small activations show a small error in the eps of
norms.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from lockstep.harness.bisect.bisection import Bisection
from lockstep.harness.blackbox import (
    fewer_layers,
    long_context,
    long_prompt,
    several_threads,
    whole,
)
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker
from lockstep.harness.blackbox.bisection import (
    MADE,
    NO_LENS,
    layer_made,
    outside,
    questions_besides,
    without_layers,
)
from lockstep.harness.blackbox.in_halves import COMPUTED_IN
from lockstep.harness.blackbox.layers import as_it_is, of_layer
from lockstep.harness.blackbox.lenses import lenses_of
from lockstep.harness.blackbox.looking import Looked, through
from lockstep.harness.blackbox.offers import (
    ENOUGH,
    embeds,
    shows_ends_alone,
    shows_no_tensors,
    why_not_asked,
)
from lockstep.harness.blackbox.places import see_in_place
from lockstep.harness.blackbox.probes import on_made_models
from lockstep.harness.blackbox.report import as_of_logits
from lockstep.harness.blackbox.slices import ALIKE, architecture, n_layers
from lockstep.harness.blackbox.time_steps import has_steps, layers_with_steps, with_large_steps
from lockstep.harness.blackbox.whole import STEPS, in_f32, is_quantised, is_small_enough
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context
from lockstep.harness.foreign.engines import has_own_model
from lockstep.harness.records import Verdict

BY_NUMBER = "layers are not tested in their places either; lockstep bisect --black-box does that"
SUITE = "black-box"
# the command that makes all of these tests; `check` makes only some
ALL_OF_THEM = "lockstep bisect --black-box"
LENSES = 8  # number of lenses; each starts both engines
SLICES = 8  # number of slices of layers with equal graphs


def takes_models(plan: Plan) -> bool:
    """Return False if the plan has adapters, which probe models lack, or if the engine has its own
    model."""
    return not (plan.settings.adapters or has_own_model(plan.engine))


def questions(plan: Plan) -> dict[str, Callable[[Context], Iterator[Verdict]]]:
    """Return the questions about probe models, by suite; none if the engine accepts no probe
    models."""
    if not takes_models(plan):
        return {}
    return {SUITE: partial(check_black_box, plan), **questions_besides(plan)}


def bisect_made_models(plan: Plan, context: Context, wrong: Sequence[Verdict]) -> Bisection | None:
    """Bisect faults that probe models show, if no op is wrong in the runs of the model itself."""
    if not takes_models(plan):
        return None
    diverged = [verdict for verdict in wrong if verdict.status == "diverged"]
    asks: list[Callable[[Plan, Context], Bisection | None]] = []
    if any("n_threads" in verdict.detail for verdict in diverged):
        asks += [several_threads.bisect_threads]
    if any(verdict.key.endswith(fewer_layers.KEY) for verdict in diverged):
        asks += [fewer_layers.bisect_fewer_layers]
    if any(verdict.suite == long_context.SUITE for verdict in diverged):
        asks += [long_context.bisect_long_context, long_prompt.bisect_long_prompt]
    return next(filter(None, (ask(plan, context) for ask in asks)), None)


def on_twin(plan: Plan, context: Context) -> Bisection | None:
    """Bisect the F32 twin for an engine that shows tensors only between layers. The twin shows each
    wrong layer. The quantised model shows only the largest errors."""
    if not takes_models(plan) or not_asked(context):
        return None
    return whole.bisect_twin(plan, context)


def check_black_box(plan: Plan, context: Context) -> Iterator[Verdict]:
    if reason := not_asked(context):
        if context.named:
            yield context.verdict(SUITE, "not-applicable", reason)
        return
    yield from on_made_models(plan, context, SUITE, partial(verdicts_of, context))


def verdicts_of(context: Context, asker: SliceAsker) -> Iterator[Verdict]:
    if says_more(context):
        yield from of_steps(asker, context)
        return
    if embeds(context):
        yield from of_embeddings(asker, context)
        return
    of_the_graph = list(of_graph(asker, context))
    yield from of_the_graph
    halves = any(COMPUTED_IN in verdict.detail for verdict in of_the_graph)
    wrong = any(verdict.status == "diverged" for verdict in of_the_graph)
    if is_quantised(asker):
        # two files may differ, which explains the finding
        of_one_file = asker.subject_file is asker.file
        if wrong and of_one_file and as_it_is(without_layers(asker)).differs:
            yield context.verdict(SUITE, "not-applicable", f"not compared: {NO_LENS}")
        else:
            yield from of_weights(asker, context)
    if not wrong and not halves:
        yield from of_places(asker, context)  # the graph's faults also show at these places


def not_asked(context: Context) -> str:
    # runs of the model itself do not have the large time steps of `of_steps`
    if says_more(context) and not has_steps(context.file):
        return f"{context.subject.name} shows tensors, which show more"
    enough = (*ENOUGH, "embed") if embeds(context) else ENOUGH
    return why_not_asked(context.subject.name, context.subject_info.levels, enough)


def says_more(context: Context) -> bool:
    """Return True if the engine's tensors show more than probe models do."""
    info = context.subject_info
    return not (shows_no_tensors(info) or shows_ends_alone(info))


def of_steps(asker: SliceAsker, context: Context) -> Iterator[Verdict]:
    """Compare large time steps on the whole model, or on a slice of the first layer that has time
    steps."""
    if is_small_enough(asker):
        asker.progress(STEPS)
        yield verdict_for_answer(context, STEPS, asker.ask(with_large_steps))
        return
    first = min(layers_with_steps(asker.file))
    if row := layer_made(asker, n_layers(asker.file), first, MADE[STEPS]):
        yield verdict_for_answer(
            context, f"the slice in F32, layer {first}, {row.what}", row.answer
        )


def of_embeddings(asker: SliceAsker, context: Context) -> Iterator[Verdict]:
    """Yield verdicts on a model that gives embeddings. It has neither slices nor lenses, because
    both need logits."""
    if not is_small_enough(asker):
        text = "the model is too large in F32, and there are no slices of models without logits"
        yield context.verdict(SUITE, "not-applicable", text)
        return
    for what, answer in in_f32(asker):
        yield verdict_for_answer(context, what, answer)


def of_graph(asker: SliceAsker, context: Context) -> Iterator[Verdict]:
    if is_small_enough(asker):
        for what, answer in in_f32(asker):
            yield verdict_for_answer(context, what, answer)
        return
    rows, n, some = list(outside(asker)), n_layers(asker.file), list[int]()
    if not any(row.answer.differs for row in rows):
        some = spread(n) if architecture(asker.file) in ALIKE else list(range(n))
        rows += [of_layer(asker, layer, n) for layer in some]
    for row in rows:
        layer = "outside the layers" if row.layer is None else f"layer {row.layer}"
        place = ", ".join(filter(None, (layer, row.what)))
        parts = "; ".join(part.name for part in row.parts)
        yield verdict_for_answer(context, f"the slice in F32, {place}", row.answer, parts)
    if has_steps(asker.file):
        yield from of_steps(asker, context)
    if 0 < len(some) < n:
        text = f"{n - len(some)} more layers of the same kind were not sliced: {ALL_OF_THEM}"
        yield context.verdict(SUITE, "not-applicable", text)


def spread(n: int) -> list[int]:
    """Return the numbers of some of n layers, spread from the first to the last."""
    return sorted({round(i * (n - 1) / (SLICES - 1)) for i in range(SLICES)})


def verdict_for_answer(context: Context, what: str, answer: SliceAnswer, more: str = "") -> Verdict:
    """Return the verdict for an answer. A refusal of the model is not held against an engine. what:
    the tested model in words; more: the faulty parts, added if the engines differ."""
    status = "not-applicable" if answer.status == "not-compared" else answer.status
    text = f"{what}: {answer.summary}"
    if answer.differs and more:
        text += f" ({more})"
    detail = {**answer.extent, **as_of_logits(answer)}
    return context.verdict(SUITE, status, text, detail, (SUITE, status, what))


def of_weights(asker: SliceAsker, context: Context) -> Iterator[Verdict]:
    lenses, unseen = lenses_of(asker.file, asker.layers_to_load)
    first = list({lens.type: lens for lens in reversed(lenses)}.values())
    first += [lens for lens in lenses if lens not in first and lens.holds_small]
    some = [*first, *(lens for lens in lenses if lens not in first)][: max(LENSES, len(first))]
    found = []
    for number, lens in enumerate(some, 1):
        asker.progress(f"lens {number} of {len(some)}: {lens.type}")
        found.append(through(asker, lens))
    if len(some) < len(lenses):
        unseen.append(f"{len(lenses) - len(some)} more lenses: {ALL_OF_THEM}")
    for each in found:
        if each.answer.differs:
            text = f"a lens of {each.lens.type}: {each.answer.summary}"
            detail = {"type": each.lens.type, "tensors": list(each.tensors), **each.answer.extent}
            detail["asked"] = ", ".join(each.tensors)  # the place of the finding
            key = (SUITE, "lens", each.lens.type)
            yield context.verdict(SUITE, each.answer.status, text, detail, key)
    yield from of_right_ones([each for each in found if each.answer.agrees], context)
    others = [e.answer.summary for e in found if not (e.answer.agrees or e.answer.differs)]
    for text in dict.fromkeys((*others, *unseen)):
        yield context.verdict(SUITE, "not-applicable", f"weights not compared: {text}")


def of_places(asker: SliceAsker, context: Context) -> Iterator[Verdict]:
    found, why = see_in_place(asker)
    if why:
        why += "" if is_small_enough(asker) else f"; {BY_NUMBER}"
        yield context.verdict(SUITE, "not-applicable", why)
    for each in found:
        if not each.answer.agrees:
            what = f"{each.look.words} in their places"
            yield verdict_for_answer(context, what, each.answer, ", ".join(each.tensors))
    fine = [each for each in found if each.answer.agrees]
    if fine:
        worst = max(each.answer.allowed for each in fine)
        words = ", ".join(each.look.words for each in fine)
        text = (
            f"in their places, in every layer: {words} (allowed {worst:.1e} of the largest logit)"
        )
        yield context.verdict(SUITE, "agreed", text, {"models": len(fine)})


def of_right_ones(fine: Sequence[Looked], context: Context) -> Iterator[Verdict]:
    if fine:
        types = ", ".join(dict.fromkeys(each.lens.type for each in fine))
        n = sum(each.weights for each in fine)
        kinds = " or ".join(dict.fromkeys(each.rounded for each in fine if each.rounded))
        how = f", some rounded to {kinds}" if kinds else ""
        text = f"{n:,} weights ({types}) agree with their bytes{how}, through {len(fine)} lenses"
        text += ": models whose logits are weights"
        yield context.verdict(SUITE, "agreed", text, {"lenses": len(fine), "weights": n})
