"""One layer of an engine without tensors: the test of its slice, and the search for its faulty
part."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.asking.facts import OF_KEYS, OF_STATES
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker
from lockstep.harness.blackbox.changes import zero
from lockstep.harness.blackbox.naming import (
    FAILS,
    FAILS_MUTED,
    LOST,
    MASK,
    OF_ATTENTION,
    OF_FFN,
    Asked,
    Part,
    part_of_attention,
    part_of_ffn,
)
from lockstep.harness.blackbox.parts import (
    EMBEDDING,
    OUTPUT,
    Maker,
    Neutral,
    experts_alike,
    heads_of,
    no_rotation,
    no_scores,
    no_sinks,
    off,
)
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import (
    ADD_OTHERWISE,
    architecture,
    at_its_place,
    reads_others,
    slice_of,
    within,
)
from lockstep.harness.blackbox.whole import LARGEST_TWIN
from lockstep.harness.sites import ATTENTION_OUT, FFN_OUT, IN_A_LAYER

RECURRENT = {  # meaning of the names of attention parts in recurrent layers
    MASK: "what earlier tokens leave: state or convolution",
    LOST: "what earlier tokens leave: state or convolution",
    "attention norm": "its norm",
    "its norm or matrices": "its norm, matrices or convolution",
}
AT_ITS_PLACE = "the others muted"
# the half that is muted while this half is tested
HALVES = {"attention": FFN_OUT, "FFN": ATTENTION_OUT}
# parts whose neutral version does not change the other half
OF_ONE_HALF: Mapping[str, tuple[Maker, str]] = MappingProxyType(
    {
        f"{half}: {name}": (maker, words)
        for half, table in (("attention", OF_ATTENTION), ("FFN", OF_FFN))
        for maker, words, name in table
        if maker in (no_rotation, no_scores, no_sinks, experts_alike)
    }
)


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """The result for one slice. layer: the layer's number, None for the parts outside the layers;
    parts: the faulty parts."""

    layer: int | None
    answer: SliceAnswer
    what: str = ""  # description of the slice, if it is a special one
    parts: tuple[Part, ...] = ()
    asked: Mapping[str, SliceAnswer] | None = None  # by description: answers with neutral parts


def of_layer(asker: SliceAsker, layer: int, n: int, known: Collection[Part] = ()) -> LayerRow:
    """Bisect a layer, and return its row. known: faults of other layers, which are likely in this
    layer too."""
    asker.progress(f"layer {layer} of {n}")
    try:
        role = role_or_place(asker, layer)
    except Unsupported as error:
        return LayerRow(layer=layer, answer=SliceAnswer(status="not-compared", summary=str(error)))
    answer = as_it_is(half(asker, layer, role, ()))
    row = LayerRow(layer=layer, answer=answer, what="" if role is not None else AT_ITS_PLACE)
    if not answer.differs:
        return row
    if answer.status != "diverged":
        return replace(row, parts=(FAILS_MUTED if role is None else FAILS,))
    found = as_in_others(asker, layer, role, answer, known) or parts_of_layer(
        asker, layer, role, answer, {part.asked_as for part in known}
    )
    return replace(found, what=row.what)


def of_its_own(asker: SliceAsker, row: LayerRow, before: Sequence[LayerRow]) -> LayerRow:
    """Return the row, with the status "not-compared" if the layer differs only because it reads
    from a wrong layer. A muted layer still has keys and values, so the layer that reads them may be
    right."""
    wrong = [str(each.layer) for each in before if each.answer.differs]
    layer, diverged = row.layer, row.answer.status == "diverged"
    if layer is None or row.what != AT_ITS_PLACE or not (diverged and wrong):
        return row
    if not reads_others(asker.file):
        return row

    def make(file: GgufFile) -> Recipe:
        recipe = at_its_place(file, layer)
        matrices = [name for name, info in file.tensors.items() if len(info.ne) > 1]
        inside = {name: IN_A_LAYER.fullmatch(name) for name in matrices}
        changes = {name: zero for name, own in inside.items() if own and own[1] in wrong}
        return replace(recipe, changes={**recipe.changes, **changes})

    if not asker.ask_of_layer(make).agrees:
        return row
    text = (
        f"the layer reads the cache of layer {', '.join(wrong)}, which differs; apart "
        "from that it agrees"
    )
    return replace(row, answer=SliceAnswer(status="not-compared", summary=text), parts=())


def role_or_place(asker: SliceAsker, layer: int) -> Mapping[str, int] | None:
    """Return the keys that give the layer its role in a model of one layer. Return None if no such
    keys are known and the layer can be tested at its place, with the other layers muted. Raises
    Unsupported if the layer cannot be tested at its place either."""
    try:
        return asker.role(layer)
    except Unsupported:
        large = sum(info.n_bytes for info in asker.file.tensors.values()) > LARGEST_TWIN
        if large or architecture(asker.file) in ADD_OTHERWISE:
            raise
        return None


def role_of_any(asker: SliceAsker) -> Mapping[str, int] | None:
    """Return the keys for a model of one layer that adds nothing. Return None if llama.cpp loads no
    model of one layer. All layers are then muted."""
    if asker.layers_to_load == 1 or architecture(asker.file) in ADD_OTHERWISE:
        return {}
    return None


def as_in_others(
    asker: SliceAsker,
    layer: int,
    role: Mapping[str, int] | None,
    answer: SliceAnswer,
    known: Collection[Part],
) -> LayerRow | None:
    """Return the layer's row if its slice agrees with one of the known parts made neutral, else
    None. The part belongs to one half-layer, so the other half-layer is then right."""
    for part in known:
        if part.name not in OF_ONE_HALF:
            continue
        maker, words = OF_ONE_HALF[part.name]
        told = half(asker, layer, role, ())(maker)
        if told is not None and told.agrees:
            return LayerRow(layer=layer, answer=answer, parts=(part,), asked={words: told})
    return None


def parts_of_layer(
    asker: SliceAsker,
    layer: int,
    role: Mapping[str, int] | None,
    answer: SliceAnswer,
    likely: Collection[str] = (),
) -> LayerRow:
    """Find the faulty parts of a layer, and return its row. role: as in `half`; likely: the names
    of parts that are wrong in other layers."""
    asked: dict[str, SliceAnswer] = {}
    parts: list[Part] = []
    for name, others in HALVES.items():
        own = Asked(ask=half(asker, layer, role, others))
        alone = as_it_is(own.ask)
        asked[f"{name} alone"] = alone
        if not alone.differs or (parts and alone.is_no_number):
            continue  # such a value comes from the half before, even if that is muted
        if name == "attention":
            part = part_of_attention(own, likely, partial(heads, asker, layer, own.ask))
        else:
            part = part_of_ffn(own, likely)
        asked |= {f"{name} alone, {words}": told for words, told in own.found.items()}
        if name == "attention" and is_recurrent(asker.file, layer):
            name, part = "recurrent part", replace(part, name=RECURRENT.get(part.name, part.name))
        parts.append(replace(part, name=in_half(name, part.name)))
    if not parts:
        words = "each half alone agrees"
        parts.append(Part(name="how attention and FFN are joined", words=words))
    return LayerRow(layer=layer, answer=answer, parts=tuple(parts), asked=asked)


def is_recurrent(file: GgufFile, layer: int) -> bool:
    """Return True if the layer has states or a convolution, and no attention."""
    stems = {name[len("blk.0.") :] for name in within(file, layer)}
    return any(s.startswith(OF_STATES) for s in stems) and not any(
        s.startswith(OF_KEYS) for s in stems
    )


def in_half(half: str, part: str) -> str:
    return part if part.startswith(half) else f"{half}: {part}"


def heads(asker: SliceAsker, layer: int, ask: Callable[[Maker], SliceAnswer | None]) -> Part | None:
    """Return a part that names the wrong heads; None if all heads or no heads are wrong."""
    found = {head: ask(maker) for head, maker in heads_of(asker.file, layer)}
    wrong = [head for head, answer in found.items() if answer is not None and answer.differs]
    if not wrong or len(wrong) == len(found):
        return None
    named = ", ".join(map(str, wrong))
    return Part(name=f"heads {named}", words=f"the {len(found) - len(wrong)} other heads are right")


def half(
    asker: SliceAsker,
    layer: int,
    role: Mapping[str, int] | None,
    muted_parts: tuple[str, ...],
    *,
    every_token: bool = False,
) -> Callable[[Maker], SliceAnswer | None]:
    """Return a function that asks about the layer's slice, with some parts muted and one more part
    neutral. role: the keys of the layer's role, None to test the layer at its place with the other
    layers muted; every_token: True to use the whole vocabulary, and, if `role` is None, only as
    many layers as llama.cpp needs to load the model."""
    cut = asker.layers_to_load if every_token and role is None else 0

    def ask(maker: Maker) -> SliceAnswer | None:
        own = maker(asker.file, layer)
        if own is None:
            return None

        def make(file: GgufFile) -> Recipe:
            neutral, muting = maker(file, layer), off(muted_parts)(file, layer)
            assert neutral is not None
            assert muting is not None
            changes = {**neutral.changes, **muting.changes}
            recipe = at_place(file, layer, role, replace(neutral, changes=changes), cut)
            # every head shows a layer; some architectures always use the table as head
            apart = neutral.own_head and (every_token or OUTPUT in file.tensors)
            return with_own_head(recipe, neutral.head) if apart else recipe

        return (asker.ask if every_token else asker.ask_of_layer)(make, own.given)

    return ask


def at_place(
    file: GgufFile, layer: int, role: Mapping[str, int] | None, own: Neutral, cut: int = 0
) -> Recipe:
    """Return the recipe of the layer's slice, or of the layer at its place if `role` is None. own:
    the changes, by the slice's names; cut: the number of first layers to keep if `role` is None, 0
    for all."""
    if role is not None:
        recipe = slice_of(file, layer, role=role, changes=own.changes)
        return replace(recipe, keys={**recipe.keys, **own.keys}, rows=own.rows)
    recipe, here = at_its_place(file, layer, cut), f"blk.{layer}."
    changes = {name.replace("blk.0.", here, 1): change for name, change in own.changes.items()}
    rows = {name.replace("blk.0.", here, 1): some for name, some in own.rows.items()}
    keys = {**recipe.keys, **own.keys}
    changes, rows = {**recipe.changes, **changes}, {**recipe.rows, **rows}
    return replace(recipe, changes=changes, keys=keys, rows=rows)


def with_own_head(recipe: Recipe, head: str) -> Recipe:
    """Return the recipe with a separate output matrix, which changes to the embeddings do not
    affect. head: the tensor that gives the matrix its values; "" for the model's own output matrix
    or embeddings."""
    source = head or recipe.names.get(OUTPUT, EMBEDDING)
    return replace(recipe, names={**recipe.names, OUTPUT: source})


def as_it_is(ask: Callable[[Maker], SliceAnswer | None]) -> SliceAnswer:
    answer = ask(lambda file, layer: Neutral())
    assert answer is not None
    return answer
