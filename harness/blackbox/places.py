"""Tests of both engines on models whose logits show each layer's matrices at their places."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.blackbox.asking import (
    SUITE,
    SliceAnswer,
    SliceAsker,
    worst_of,
)
from lockstep.harness.blackbox.behind_the_head import hidden_by
from lockstep.harness.blackbox.in_place import (
    EMBEDDINGS,
    LOOKS,
    Layout,
    LookInPlace,
    batch_of,
    layout_of,
    recipe_of,
)
from lockstep.harness.blackbox.probes import judge_logits
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.whole import is_small_enough
from lockstep.harness.check.check import Opened
from lockstep.harness.judging.compare import largest
from lockstep.harness.records import Request
from lockstep.harness.suites.parts.whole_runs import compare_runs

ALIKE = 2.0**-6  # share of the largest value: error of a multiple after rounding to BF16
OTHER_EPS = "the engine under test does not take attention.layer_norm_rms_epsilon from the file"
IN_F32_AS_WELL = (
    "the engines differ in every place, also in F32: norms of heads or after a "
    "half-layer may have a different eps, or embeddings may have a different scale"
)
WITHOUT_F32 = (
    "the engines differ in every layer. The fault may be in the weights or in the ops, "
    "and the engine does not answer for the F32 model"
)
TOO_LARGE = "matrices are not tested in their places: the model in F32 is too large"
# pairs that form scores, or the activation
TOGETHER = (("attn_q", "attn_k"), ("ffn_up", "ffn_gate"))


@dataclass(frozen=True, kw_only=True)
class SeenInPlace:
    """The result of one test in place. tensors: the stored tensors of the layers that differ, the
    worst first."""

    look: LookInPlace
    answer: SliceAnswer
    tensors: tuple[str, ...] = ()
    other_eps: bool = False  # norms do not divide by the root of the file's eps
    in_f32: str = ""  # description of matrices at which the engines also differ in F32
    untold: str = ""  # reason why the result is unknown for tensors that occur in every layer


def put_together(places: Sequence[SeenInPlace]) -> Sequence[str]:
    """Describe pairs of named matrices that act together in a probe model, so that either of the
    two may be wrong."""
    named = dict.fromkeys(name for each in places for name in each.tensors)
    found = []
    for name in named:
        stem = name.split(".")[-2]
        others = [pair for pair in TOGETHER if stem in pair]
        both = [name.replace(stem, other) for pair in others for other in pair]
        if both and all(other in named for other in both) and name == both[0]:
            found.append(f"{both[0]} and {both[1].split('.', 2)[2]}, or their common product")
    return found


def see_in_place(asker: SliceAsker) -> tuple[list[SeenInPlace], str]:
    """Test the matrices in place. Return the results, and the reason why the test or a part of it
    does not apply, "" if the whole test applies."""
    if not is_small_enough(asker):
        return [], TOO_LARGE
    try:
        layout = layout_of(asker.file)
    except Unsupported as error:
        return [], f"matrices are not tested in their places: {error}"
    found, unseen, untold = [], [], []
    for number, look in enumerate(LOOKS, 1):
        asker.progress(f"matrices at their places, {number} of {len(LOOKS)}: {look.words}")
        each = see_one(asker, layout, look)
        if each.answer.status == "not-applicable":  # the other looks do not apply either
            return [], f"matrices are not tested in their places: {each.answer.summary}"
        if each.other_eps:
            return [], f"matrices are not tested in their places: {OTHER_EPS}"
        each = without_those_wrong_in_f32(asker, layout, each)
        if each.in_f32:
            unseen.append(each.in_f32)
        if each.untold:
            untold.append(each.untold)
        if each.tensors or not (each.in_f32 or each.untold):
            found.append(each)
    if unseen:
        untold.insert(0, f"{', '.join(unseen)}: {IN_F32_AS_WELL}")
    return found, f"not tested in their places: {'; '.join(untold)}" if untold else ""


def without_those_wrong_in_f32(asker: SliceAsker, layout: Layout, each: SeenInPlace) -> SeenInPlace:
    """Remove matrices that differ in every layer, and embeddings, if they differ in F32 as well,
    because their storage is then not at fault."""
    named = {name.split(".")[-2] for name in each.tensors}
    every = [m for m in sorted(named) if set(layout.every(m)) <= set(each.tensors)]
    if not every:
        return each

    def in_f32(file: GgufFile) -> Recipe:
        return replace(recipe_of(file, layout, each.look), stored=frozenset())

    answer = asker.ask(asker.of_few_tokens(in_f32), (batch_of(layout, each.look),))
    if answer.agrees:
        return each
    rest = tuple(name for name in each.tensors if name.split(".")[-2] not in every)
    if answer.status != "diverged":  # an engine refused this model, so the result is unknown
        why = f"{', '.join(every)}: {WITHOUT_F32} ({answer.summary})"
        return replace(each, tensors=rest, untold=why)
    return replace(each, tensors=rest, in_f32=", ".join(every) if rest else each.look.words)


def see_one(asker: SliceAsker, layout: Layout, look: LookInPlace) -> SeenInPlace:
    found = seen_once(asker, layout, look)
    return seen_once(asker, layout, look) if asker.wants_all_tokens(found.answer) else found


def seen_once(asker: SliceAsker, layout: Layout, look: LookInPlace) -> SeenInPlace:
    return judge_logits(
        asker,
        asker.of_few_tokens(partial(recipe_of, layout=layout, look=look)),
        partial(judge_place, layout=layout, look=look),
        lambda answer: SeenInPlace(look=look, answer=answer),
    )


def judge_place(opened: Opened, layout: Layout, look: LookInPlace) -> SeenInPlace:
    context = replace(opened.context, given=(batch_of(layout, look),))
    levels = context.subject_info.levels
    if levels is not None and "logits" not in levels:
        text = f"{context.subject.name} shows no logits"
        return SeenInPlace(look=look, answer=SliceAnswer(status="not-applicable", summary=text))
    expected, actual = context.ask_both("evaluate", Request(batches=context.batches))
    truth = np.concatenate(context.noise.logits)
    # some places show the same numbers after every token, for example the bias of the output
    verdict = compare_runs(
        context, SUITE, context.batches, expected, actual, truth, rows_differ=False
    )
    answer = worst_of([verdict], context.oracle.name)
    if not answer.differs:
        hidden = hidden_by(layout.cap, truth) if answer.agrees else 0
        if hidden:
            text = f"the cap of logits, {layout.cap:g}, hides {hidden:,} of {truth.size:,}"
            answer = SliceAnswer(status="not-compared", summary=text)
        return SeenInPlace(look=look, answer=answer)
    allowed = answer.allowed * largest(expected.logits[0])
    if look is EMBEDDINGS and is_another_eps(expected.logits[0], actual.logits[0]):
        return SeenInPlace(look=look, answer=answer, other_eps=True)
    tensors = tensors_of(layout, look, expected.logits[0], actual.logits[0], allowed)
    return SeenInPlace(look=look, answer=answer, tensors=tuple(tensors))


def is_another_eps(expected: F32, actual: F32) -> bool:
    """Return True if the logits of each token are off by a factor that no rounding explains. The
    norm then does not divide by the root of the file's eps. The engine may still be right on the
    user's model, if that model has the eps that the engine uses."""
    if expected.shape != actual.shape or not np.isfinite(actual).all():
        return False
    wide, found = expected.astype(np.float64), actual.astype(np.float64)
    shown = wide.any(axis=1)  # the embedding of an unused token may be zero, and stays zero
    if not shown.any() or found[~shown].any():
        return False
    wide, found = wide[shown], found[shown]
    times = (wide * found).sum(1) / np.square(wide).sum(1)
    off = np.abs(found - times[:, None] * wide).max(1)
    return bool((off <= ALIKE * np.abs(found).max(1)).all() and (times > 2).all())


def tensors_of(
    layout: Layout, look: LookInPlace, expected: F32, actual: F32, allowed: float
) -> Sequence[str]:
    """Return the tensors that determine the wrong logits, the largest error first."""
    if expected.shape != actual.shape:
        return ()
    with np.errstate(invalid="ignore"):
        off = np.abs(actual.astype(np.float64) - expected)
    off = np.where(np.isnan(off), np.inf, off)
    worst: dict[str, float] = {}
    for token, logit in np.argwhere(off > allowed):
        if name := layout.tensor(look, int(token), int(logit)):
            worst[name] = max(worst.get(name, 0.0), float(off[token, logit]))
    return sorted(worst, key=lambda name: -worst[name])
