"""Comparison of both engines' weights through lenses."""

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.near import U
from lockstep.engine.quants.base import F32
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker
from lockstep.harness.blackbox.behind_the_head import hidden_by
from lockstep.harness.blackbox.in_halves import NOT_WEIGHTS, Kept
from lockstep.harness.blackbox.lens import Lens
from lockstep.harness.blackbox.lens_conversions import ConversionSeen, conversions_seen
from lockstep.harness.blackbox.lenses import expected_of, lenses_of, recipe_of, shorten_names
from lockstep.harness.blackbox.probes import judge_logits
from lockstep.harness.blackbox.wide_lenses import is_wide
from lockstep.harness.check.check import Opened
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.conversions import Convert
from lockstep.harness.judging.factor_designs import HALVES, of_quantised_weights
from lockstep.harness.judging.stored import ROUNDED, half_step, looks_like
from lockstep.harness.records import Request

More = Callable[[F32, NDArray[np.float64]], NDArray[np.float64]]
AS_A_HEAD = (
    "every matrix gives wrong logits as the head, so the head's product may be the only fault"
)


@dataclass(kw_only=True)
class SeenThroughLens:
    """The logits of one engine through a lens, with the number of wrong logits for each tensor, and
    the worst logit."""

    wrong: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0  # share of the limit
    sentence: str = ""
    kind: str = ""  # the kind of the first wrong value
    logits: int = 0
    hidden: int = 0  # number of these logits that a cap hides
    stored: set[str] = field(default_factory=set)  # types that hold all values of a run


@dataclass(frozen=True, kw_only=True)
class Looked:
    """The result for one lens. tensors: the tensors that the engine decodes wrongly."""

    lens: Lens
    answer: SliceAnswer
    tensors: tuple[str, ...] = ()
    rounded: str = ""  # description of how the engine rounds decoded weights

    @property
    def weights(self) -> int:
        return sum(stretch.rows for stretch in self.lens.stretches) * self.lens.shown_of_a_row


def look(asker: SliceAsker) -> tuple[list[Looked], list[str]]:
    """Look through every lens. Return the results, and the tensors without a lens."""
    lenses, left_out = lenses_of(asker.file, asker.layers_to_load)
    found = []
    for number, lens in enumerate(lenses, 1):
        asker.progress(f"lens {number} of {len(lenses)}: {lens.type}")
        found.append(through(asker, lens))
    return found, left_out


def through(asker: SliceAsker, lens: Lens) -> Looked:
    """Look through a lens, and return the result. If the engine gives wrong answers for every model
    of the lens's width, the lens proves nothing about weights."""
    found = through_once(asker, lens)
    if not found.answer.differs or not is_wide(asker.file, lens):
        return found
    with closing(
        replace(asker, plan=replace(asker.plan, subject_model=asker.plan.model))
    ) as of_one_file:
        if through_once(of_one_file, replace(lens, decoded=True)).answer.agrees:
            return found
    text = f"the engine accepts no model of width {lens.width}, which {lens.type} needs"
    return Looked(lens=lens, answer=SliceAnswer(status="not-compared", summary=text))


def through_once(asker: SliceAsker, lens: Lens) -> Looked:
    return judge_logits(
        asker,
        partial(recipe_of, lens=lens),
        lambda opened: judge_lens(opened, asker.file, lens, lambda: asker.halves),
        lambda answer: Looked(lens=lens, answer=answer),
    )


def judge_lens(opened: Opened, file: GgufFile, lens: Lens, kept: Kept) -> Looked:
    """Compare both engines with the weights in the oracle's file. kept: a function that returns the
    16-bit type in which the engine under test computes."""
    context = opened.context
    levels = context.subject_info.levels
    if levels is not None and "logits" not in levels:
        text = f"{context.subject.name} shows no logits"
        return Looked(lens=lens, answer=SliceAnswer(status="not-applicable", summary=text))
    conversions = conversions_seen(context, file, lens)
    converted = conversions[1].convert if conversions else None
    oracle, subject = seen_by_both(context, file, lens, converted=converted)
    if oracle.wrong:
        text = f"{context.oracle.name} changes logits after the head's product: {oracle.sentence}"
        return Looked(lens=lens, answer=SliceAnswer(status="not-compared", summary=text))
    if subject.wrong and (kind := rounded_to(context, file, lens, converted)):
        text = f"{subject.logits:,} logits show each weight once, rounded to {kind}"
        return Looked(lens=lens, answer=SliceAnswer(status="agreed", summary=text), rounded=kind)
    if subject.wrong and (more := allowed_in_halves(subject.stored, kept, lens)):
        _, subject = seen_by_both(context, file, lens, more, converted)
        if not subject.wrong:
            return Looked(lens=lens, answer=SliceAnswer(status="not-compared", summary=NOT_WEIGHTS))
    if not subject.wrong and subject.hidden:
        text = f"the cap of logits, {lens.cap:g}, hides {subject.hidden:,} of {subject.logits:,}"
        return Looked(lens=lens, answer=SliceAnswer(status="not-compared", summary=text))
    if not subject.wrong and conversions and conversions[0].known and not conversions[1].known:
        return Looked(lens=lens, answer=unknown_conversion(conversions[1], kept))
    if not subject.wrong:
        text = f"{subject.logits:,} logits show each weight once, within {subject.worst:.2g} of the"
        answer = SliceAnswer(status="agreed", summary=f"{text} limit")
        return Looked(lens=lens, answer=answer)
    tensors = tuple(name for name, _ in subject.wrong.most_common())
    text = f"{shorten_names(tensors)}: {subject.sentence}"
    if 1 < len(tensors) == len({stretch.tensor for stretch in lens.stretches}):
        text += f"; {AS_A_HEAD}"
    extent = {"kind": subject.kind, "mismatched": subject.wrong.total()}
    answer = SliceAnswer(status="diverged", summary=text, extent=extent)
    return Looked(lens=lens, answer=answer, tensors=tensors)


def unknown_conversion(seen: ConversionSeen, kept: Kept) -> SliceAnswer:
    if kept() != "":  # rounding to F16 or BF16 hides the conversion
        return SliceAnswer(status="not-compared", summary=NOT_WEIGHTS)
    extent = {"kind": "value", "mismatched": seen.mismatched, "actual": seen.actual}
    extent |= {"expected": seen.expected, "allowed": seen.allowed}
    return SliceAnswer(status="diverged", summary=seen.sentence, extent=extent)


def rounded_to(context: Context, file: GgufFile, lens: Lens, converted: Convert | None) -> str:
    """Return the format that the engine rounds decoded weights to, or "" if there is none. Each
    weight that the lens shows must be the nearest number in that format. The matching designs are
    then added to the context, where they may explain runs of the probe models."""
    if context.rounding is None:
        return ""
    for kind, to in HALVES.items():
        _, subject = seen_by_both(context, file, lens, converted=converted, to=to)
        if not subject.wrong:
            context.rounding[:] = context.rounding or of_quantised_weights(kind)
            return kind
    return ""


def allowed_in_halves(stored: Collection[str], kept: Kept, lens: Lens) -> More | None:
    """Return a function that widens the limit. For an engine that computes in half precision, it
    counts as many roundings, but in half precision. For an engine that rounds only its logits, it
    adds half a step. Return None for other engines. stored: the type that represents the logits of
    each run exactly, "" for F32."""
    shown = "" if "" in stored else "F16" if "F16" in stored else "BF16"
    proven = kept()
    if proven == "":
        return (lambda got, allowed: allowed + half_step(got, shown)) if shown else None
    if not (kind := proven or shown):
        return None
    bits, smallest = ROUNDED[kind]
    # least: one smallest step for each weight and one for each product
    times, least = 2.0 ** -(bits + 1) / U, 2 * lens.hot * 2.0**smallest
    return lambda got, allowed: times * allowed + least * abs(lens.scale)


def seen_by_both(
    context: Context,
    file: GgufFile,
    lens: Lens,
    more: More | None = None,
    converted: Convert | None = None,
    to: Convert | None = None,
) -> tuple[SeenThroughLens, SeenThroughLens]:
    """Return the results of both engines. more: a function that turns the usual limit into the
    limit of the engine under test; converted: that engine's conversion of activations, if it
    differs from llama.cpp's; to: the format to which that engine rounds decoded weights."""
    both = SeenThroughLens(), SeenThroughLens()
    for batch, inputs in lens.batches:
        runs = context.ask_both("evaluate", Request(batches=(batch,)))
        theirs = inputs if converted is None else converted(inputs.astype(np.float32))
        ways: list[tuple[NDArray[np.float64], Convert | None]] = [(inputs, None)]
        if to is not None or not np.array_equal(theirs, inputs):
            ways += [(theirs, to)]
        each = [list(expected_of(file, lens, met, context.lanes, way)) for met, way in ways]
        for seen, run, expected in zip(both, runs, (each[0], each[-1]), strict=True):
            seen.stored.add(looks_like(run.logits))
            for rows, value, allowed in expected:
                got = run.logits[0][:, rows]
                limit = allowed if more is None or seen is both[0] else more(got, allowed)
                hold(seen, lens, rows, value, got, limit)
    return both


def hold(
    seen: SeenThroughLens, lens: Lens, rows: slice, value: Any, got: F32, allowed: Any
) -> None:
    seen.logits += got.size
    seen.hidden += hidden_by(lens.cap, value)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(got - value) / allowed
    seen.worst = max(seen.worst, float(np.nan_to_num(share, nan=0.0).max(initial=0.0)))
    off = mismatch_between(value, got, allowed)
    if off is None:
        return
    row = off.index[1]
    stretch, first = lens.where(rows.start + row, 0)
    words, tensor = (stretch.words, stretch.tensor) if stretch else ("", "")
    if not seen.sentence:
        seen.kind = off.kind
        some = "one weight" if lens.hot == 1 else f"the sum of {lens.hot} weights"
        seen.sentence = (
            f"{some} among the {lens.width} weights from number {first} of {words} is "
            f"{off.actual:.9g}, expected {off.expected:.9g} (allowed {off.allowed:.1e})"
        )
    seen.wrong[tensor] += off.mismatched
