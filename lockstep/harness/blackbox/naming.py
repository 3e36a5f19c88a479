"""Which part is at fault, from where two engines still differ once parts are neutral.

A table of questions, each on a slice in which only one half of the layer works, so that a fault in
the other cannot answer. The first row that fits gives the name; what nothing tells apart is named
by the half.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lockstep.harness.blackbox.asking import SliceAnswer
from lockstep.harness.blackbox.parts import (
    Maker,
    larger,
    no_bias,
    no_rotation,
    no_scores,
    no_sinks,
    norms_do_nothing,
    norms_of_ones,
    one_row,
    open_gate,
    plain_head,
    position_0,
    up_of_one,
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """name: of a closed list; words: what made it certain."""

    name: str
    words: str
    asked_as: str = ""  # in the table of questions


# in the order in which they are asked: what each says if the engines agree with it
OF_ATTENTION: tuple[tuple[Maker, str, str], ...] = (
    (no_bias, "biases of zero", "bias"),
    (larger, "a smaller eps", "eps"),
    (norms_of_ones, "norms with weights of one", "weights of norms"),
    (norms_do_nothing, "embeddings that a norm does not change", "attention norm"),
    (no_rotation, "positions that turn nothing", "rotation"),
    (no_scores, "queries of zero", "scores: queries, keys, rotation or scale"),
    (no_sinks, "sinks that take nothing", "sinks"),
    (position_0, "a single token", "mask, softmax or cache"),
)
OF_FFN: tuple[tuple[Maker, str, str], ...] = (
    (no_bias, "biases of zero", "bias"),
    (larger, "a smaller eps", "eps"),
    (norms_of_ones, "norms with weights of one", "weights of norms"),
    (norms_do_nothing, "embeddings that a norm does not change", "FFN norm"),
    (up_of_one, "an up branch of one", "FFN gate: the up branch"),
    (open_gate, "an open gate", "FFN activation"),
)
OUTSIDE: tuple[tuple[Maker, str, str], ...] = (
    (one_row, "embeddings that are all the same", "embedding"),
    (larger, "a smaller eps", "eps"),
    (norms_of_ones, "norms with weights of one", "weights of norms"),
    (norms_do_nothing, "embeddings that a norm does not change", "output norm"),
    (plain_head, "a head that shows the norm's results", "output matrix"),
)


def part_of(
    questions: tuple[tuple[Maker, str, str], ...],
    ask: Callable[[Maker], SliceAnswer | None],
    rest: str,
    likely: Collection[str] = (),
) -> tuple[Part, Mapping[str, SliceAnswer]]:
    """The part, and every answer by its words. rest: the name if no question tells it; likely:
    names that other layers have come to, whose questions are asked first: an engine makes the same
    mistake in every layer, and each question takes a second."""
    found: dict[str, SliceAnswer] = {}
    for maker, words, name in sorted(questions, key=lambda question: question[2] not in likely):
        answer = ask(maker)
        if answer is None:
            continue
        found[words] = answer
        if answer.agrees:
            return Part(name=name, words=f"the engines agree with {words}"), found
    said = f"they differ with {', '.join(w for w, a in found.items() if a.differs)} as well"
    return Part(name=rest, words=said if found else ""), found
