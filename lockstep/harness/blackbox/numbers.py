"""What a layer is by its number: slices give all layers the number 0.

Where no slice differs and the whole does, each layer is asked at its own place, the others muted.
Many at once first: a group that agrees has no wrong layer. Where all slices differ it may be the
number 0 that does, which all of them have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker
from lockstep.harness.blackbox.layers import LayerRow, parts_of_layer
from lockstep.harness.blackbox.naming import Part
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import muted
from lockstep.harness.blackbox.whole import is_small_enough

AT_ITS_PLACE, ALL_MUTED = "the others muted", "all layers muted"
BY_NUMBER, OR_A_TENSOR = "by its number", "or a tensor that is taken wrongly"
OUTSIDE = Part(
    name="what comes before or behind so many layers",
    words="they differ where no layer adds anything, and a slice of one layer agrees",
)


def by_number(asker: SliceAsker, n: int) -> list[LayerRow]:
    """No slice differs and the whole does."""
    answer = with_others_muted(asker, ())
    if answer.differs:
        return [LayerRow(layer=None, answer=answer, parts=(OUTSIDE,), what=ALL_MUTED)]
    return sorted(guilty_among(asker, range(n)), key=lambda row: row.layer or 0)


def guilty_among(asker: SliceAsker, layers: Sequence[int]) -> Iterator[LayerRow]:
    """A row for each of them."""
    asker.progress(f"layers {layers[0]} to {layers[-1]} at their places")
    answer = with_others_muted(asker, layers)
    if not answer.differs:
        yield from (LayerRow(layer=n, answer=answer, what=AT_ITS_PLACE) for n in layers)
    elif len(layers) == 1:
        yield named(asker, layers[0], answer)
    else:
        middle = len(layers) // 2
        yield from guilty_among(asker, layers[:middle])
        yield from guilty_among(asker, layers[middle:])


def named(asker: SliceAsker, layer: int, answer: SliceAnswer) -> LayerRow:
    row = parts_of_layer(asker, layer, None, answer)
    return replace(row, parts=tuple(map(by_its_number, row.parts)), what=AT_ITS_PLACE)


def by_its_number(part: Part) -> Part:
    """A tensor that is spoilt by its name is so however simple it is made."""
    name = f"{part.name}, {OR_A_TENSOR}" if part.left else part.name
    return replace(part, name=f"{name}, {BY_NUMBER}")


def with_others_muted(asker: SliceAsker, layers: Sequence[int]) -> SliceAnswer:
    def make(file: GgufFile) -> Recipe:
        return muted(file, layers)

    return asker.ask(make)


def are_of_number_0(asker: SliceAsker, slices: Sequence[LayerRow], n: int) -> bool:
    """Whether it is the slices' number that differs: the last layer agrees at its own place."""
    if n < 2 or len(slices) < n or not all(row.answer.differs for row in slices):
        return False
    return is_small_enough(asker) and with_others_muted(asker, (n - 1,)).agrees
