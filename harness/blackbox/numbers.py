"""Faults that depend on a layer's number. In a slice every layer has the number 0, and may be the
last.

If the whole model differs but no slice does, each layer is tested at its own place, with the others
muted. Groups of layers come first: a group that agrees has no wrong layer. If all slices differ,
the fault may belong to number 0, or to the last layer of a model. Only some slices may differ in a
model whose layers have kinds by number (for example, every sixth layer sees all tokens). The engine
may then number layers differently, so that every slice shows its layer 0, and other layers differ
at their places. An engine that uses another layer's tensors is right if all layers have the same
tensors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker
from lockstep.harness.blackbox.layers import AT_ITS_PLACE, LayerRow, parts_of_layer
from lockstep.harness.blackbox.naming import Part
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import at_their_places, first_layers, mute_other_layers
from lockstep.harness.blackbox.whole import is_small_enough
from lockstep.harness.sites import IN_A_LAYER

ALL_MUTED = "all layers muted"
BY_NUMBER, OR_A_TENSOR = "by its number", "or a tensor that is read wrongly"
MUCH = 2.0**-6  # share of the largest logit
ONE_OF_ITS_OWN = "the other layers with the first layer's tensors"
ANOTHERS = Part(
    name="tensors: the engine uses another layer's, or uses this layer's elsewhere",
    words="the engines agree if all layers have the same tensors",
)
BETWEEN = Part(
    name="the output of a layer that later layers read",
    words="each of these layers agrees alone, and they differ together",
)
OUTSIDE = Part(
    name="parts before or after this many layers",
    words="the engines differ if all layers are muted, and a slice of one layer agrees",
)


def by_number(asker: SliceAsker, n: int) -> list[LayerRow]:
    """Test the layers at their places for a fault that depends on a layer's number. Return the
    layers' rows, or one row for the parts outside the layers if the model differs even with all
    layers muted."""
    answer = with_others_muted(asker, ())
    if answer.differs:
        return [LayerRow(layer=None, answer=answer, parts=(OUTSIDE,), what=ALL_MUTED)]
    of_others = takes_another(asker, n)
    found = takes_others(asker, range(1, n)) if of_others else guilty_among(asker, range(n))
    return sorted(found, key=lambda row: row.layer or 0)


def takes_another(asker: SliceAsker, n: int) -> bool:
    """Return True if the engine uses another layer's tensors, so that it agrees only if all layers
    are equal. A small difference does not count, because it may be smaller in another model."""
    if n < 2 or not are_alike(asker.file, n) or not with_own_tensors(asker, ()).agrees:
        return False
    return with_own_tensors(asker, range(n)).worst >= MUCH


def takes_others(asker: SliceAsker, layers: Sequence[int]) -> Iterator[LayerRow]:
    """Yield a row for each layer. The row differs if the engine uses another layer's tensors in
    this layer."""
    asker.progress(f"layers {layers[0]} to {layers[-1]} with their own tensors")
    answer = with_own_tensors(asker, layers)
    if not answer.differs or len(layers) == 1:
        parts = (ANOTHERS,) if answer.differs else ()
        yield from (
            LayerRow(layer=n, answer=answer, parts=parts, what=ONE_OF_ITS_OWN) for n in layers
        )
        return
    middle = len(layers) // 2
    yield from takes_others(asker, layers[:middle])
    yield from takes_others(asker, layers[middle:])


def are_alike(file: GgufFile, n: int) -> bool:
    """Return True if each layer could have the tensors of the first layer."""
    kinds: list[set[tuple[str, tuple[int, ...]]]] = [set() for _ in range(n)]
    for name, info in file.tensors.items():
        if (inside := IN_A_LAYER.fullmatch(name)) and int(inside[1]) < n:
            kinds[int(inside[1])].add((inside[2], tuple(info.ne)))
    return all(kind == kinds[0] for kind in kinds)


def with_own_tensors(asker: SliceAsker, layers: Sequence[int]) -> SliceAnswer:
    """Ask about a model in which all layers except these have the tensors of the first layer."""

    def make(file: GgufFile) -> Recipe:
        names = {}
        for name in file.tensors:
            inside = IN_A_LAYER.fullmatch(name)
            others = inside is not None and int(inside[1]) not in layers
            names[name] = f"blk.0.{inside[2]}" if inside and others else name
        # a large model stays as it is stored, because in F32 each engine would need several times
        # its bytes
        stored = frozenset() if is_small_enough(asker) else frozenset(names)
        return Recipe(names=names, stored=stored)

    return asker.ask(make)


def guilty_among(asker: SliceAsker, layers: Sequence[int]) -> Iterator[LayerRow]:
    """Yield a row for each layer, tested at its place; and a row for a group that differs although
    each of its layers agrees."""
    asker.progress(f"layers {layers[0]} to {layers[-1]} at their places")
    answer = with_others_muted(asker, layers)
    if not answer.differs:
        yield from (LayerRow(layer=n, answer=answer, what=AT_ITS_PLACE) for n in layers)
    elif len(layers) == 1:
        yield name_parts(asker, layers[0], answer)
    else:
        middle = len(layers) // 2
        halves = layers[:middle], layers[middle:]
        rows = [row for half in halves for row in guilty_among(asker, half)]
        yield from rows
        if all(row.answer.agrees for row in rows):
            what = f"together with the layers up to {layers[-1]}"
            yield LayerRow(layer=layers[0], answer=answer, parts=(BETWEEN,), what=what)


def name_parts(asker: SliceAsker, layer: int, answer: SliceAnswer) -> LayerRow:
    row = parts_of_layer(asker, layer, None, answer)
    return replace(row, parts=tuple(map(by_its_number, row.parts)), what=AT_ITS_PLACE)


def by_its_number(part: Part) -> Part:
    """Return the part with a note that its fault depends on the layer's number. If the fault
    remains in the simplest part, the name adds a second cause: a tensor that the engine reads
    wrongly."""
    name = f"{part.name}, {OR_A_TENSOR}" if part.left else part.name
    return replace(part, name=f"{name}, {BY_NUMBER}")


def with_others_muted(asker: SliceAsker, layers: Sequence[int]) -> SliceAnswer:
    if is_small_enough(asker):
        return asker.ask(lambda file: mute_other_layers(file, layers))
    return asker.ask_of_layer(lambda file: at_their_places(file, layers))


def are_of_other_numbers(asker: SliceAsker, slices: Sequence[LayerRow], n: int) -> bool:
    """Return True if a slice and the same layer at its place disagree, in a model whose layers have
    different roles."""
    wrong = [row.layer for row in slices if row.layer is not None and row.answer.differs]
    right = [row.layer for row in slices if row.layer is not None and row.answer.agrees]
    if not wrong or not is_small_enough(asker) or not have_roles(asker, n):
        return False
    asker.progress("comparing slices with layers in their places")
    few = dict.fromkeys((wrong[0], wrong[min(1, len(wrong) - 1)], wrong[-1]))
    if right and with_others_muted(asker, right).status == "diverged":
        return True
    return any(with_others_muted(asker, (layer,)).agrees for layer in few)


def counted_otherwise(slices: Sequence[LayerRow], placed: Sequence[LayerRow]) -> list[LayerRow]:
    """Return the rows of the layers at their places, with a note that names the slices that differ
    and says that the engine numbers layers differently. placed: the rows of the layers at their
    places."""
    wrong = ", ".join(str(row.layer) for row in slices if row.answer.differs)
    text = (
        f"as models of one layer, layers {wrong} differ: the engine counts the kinds of "
        "layers differently"
    )

    def with_text(part: Part) -> Part:
        return replace(part, words=f"{part.words}; {text}" if part.words else text)

    return [replace(row, parts=tuple(map(with_text, row.parts))) for row in placed]


def have_roles(asker: SliceAsker, n: int) -> bool:
    """Return True if slices of different layers have different keys."""
    try:
        return len({tuple(asker.role(layer).items()) for layer in range(n)}) > 1
    except Unsupported:
        return False


def are_of_one_number(asker: SliceAsker, slices: Sequence[LayerRow], n: int) -> bool:
    """Return True if the slices differ because a slice's layer has the number 0 or is the last
    layer. Then the model's last layer agrees at its own place, or the first layer agrees with
    another layer after it."""
    if n < 2 or len(slices) < n or not all(row.answer.differs for row in slices):
        return False
    if not is_small_enough(asker):
        return False
    return with_another_behind(asker).agrees or with_others_muted(asker, (n - 1,)).agrees


def with_another_behind(asker: SliceAsker) -> SliceAnswer:
    """Ask about a model of the first layer and a second layer that adds nothing."""

    def make(file: GgufFile) -> Recipe:
        changes = mute_other_layers(file, (0,)).changes
        return replace(first_layers(file, 2), stored=frozenset(), changes=changes)

    return asker.ask_of_layer(make)
