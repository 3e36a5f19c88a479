"""`lockstep bisect --black-box`: which layer, and which part of it, of an engine without tensors.

What comes before and after the layers is asked alone, then each layer between them. All in F32:
nothing is converted, so that little has to be allowed. Then lenses show the decoded weights. Where
all of that agrees, so must whatever `check` asks: the whole model in F32, and the other suites.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.bisect.bisection import UNANSWERED, said_by_check
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker, answered, why_not_asked
from lockstep.harness.blackbox.looking import Looked, look
from lockstep.harness.blackbox.naming import OF_ATTENTION, OF_FFN, OUTSIDE, Part, part_of
from lockstep.harness.blackbox.parts import (
    EMBEDDING,
    OUTPUT,
    Maker,
    Neutral,
    heads_of,
    off,
    smaller,
)
from lockstep.harness.blackbox.places import SeenInPlace, see_in_place
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import ATTENTION_OUT, FFN_OUT, muted, n_layers, slice_of
from lockstep.harness.blackbox.slices import small as with_small_activations
from lockstep.harness.blackbox.whole import TWIN, in_f32
from lockstep.harness.check.check import open_plan
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.locate.locate import LEVELS
from lockstep.harness.records import EngineInfo, Verdict

SMALL, AT_ITS_PLACE = "small activations", "the others muted"
EPS = Part(name="eps", words="they differ where the squares of activations are small")


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One slice. layer: None outside the layers. parts: what is at fault in it."""

    layer: int | None
    answer: SliceAnswer
    what: str = ""  # of the slice, if it is no plain one
    parts: tuple[Part, ...] = ()
    asked: Mapping[str, SliceAnswer] | None = None  # with parts neutral, by words


@dataclass(frozen=True, kw_only=True)
class BlackBoxBisection:
    rows: tuple[LayerRow, ...]
    lenses: tuple[Looked, ...]
    whole: SliceAnswer
    places: tuple[SeenInPlace, ...] = ()
    no_places: str = ""  # why these models cannot be made, or not be asked of this engine
    left_out: tuple[str, ...] = ()  # what was not asked, and why
    in_f32: Mapping[str, SliceAnswer] = field(default_factory=dict)  # of the whole, by words
    others: tuple[Verdict, ...] = ()  # what check says besides, where all of the above agrees

    @property
    def guilty(self) -> tuple[LayerRow, ...]:
        return tuple(row for row in self.rows if row.answer.differs)

    @property
    def exit_code(self) -> int:
        """Whatever is not known spoils a zero; a fault that was named is one beside it."""
        answers = [*(row.answer for row in self.rows), *(look.answer for look in self.lenses)]
        answers += [*self.in_f32.values(), *(seen.answer for seen in self.places)]
        others = {verdict.status for verdict in self.others}
        if "diverged" in others or any(a.status == "diverged" for a in (*answers, self.whole)):
            return 1
        known = all(answer.status in ("agreed", "not-applicable") for answer in answers)
        all_known = known and not self.left_out and not self.others
        return 0 if all_known and self.whole.agrees else 3


def bisect_black_box(asker: SliceAsker) -> BlackBoxBisection:
    """Raises NoAnswer for an engine that answers on no model made of this one."""
    n, left_out = n_layers(asker.file), []
    check_can_be_asked(asker)
    rows = list(outside(asker))
    check_can_be_asked(asker, rows[0].answer.engines)
    if any(row.answer.differs for row in rows):
        left_out.append(f"{n} layers: their slices have the fault outside the layers as well")
    else:
        for layer in range(n):
            likely = {part.asked_as for row in rows for part in row.parts}
            rows.append(of_layer(asker, layer, n, likely))
    lenses, unseen = look(asker)
    asker.progress("the whole model")
    whole = answered(asker.plan, (), asker.progress)
    answers = [*(row.answer for row in rows), *(look.answer for look in lenses)]
    found = BlackBoxBisection(
        rows=tuple(rows),
        lenses=tuple(lenses),
        whole=whole,
        left_out=(*left_out, *unseen),
    )
    seen = any(answer.differs for answer in answers)
    return found if seen else of_the_whole(asker, found, n)


def check_can_be_asked(asker: SliceAsker, engines: Sequence[EngineInfo] = ()) -> None:
    levels = engines[1].levels if engines else None  # the oracle's come first
    if text := why_not_asked(asker.plan.engine, levels):
        raise NoAnswer("not-compared", text, {LEVELS: levels or ()})


def of_the_whole(asker: SliceAsker, found: BlackBoxBisection, n: int) -> BlackBoxBisection:
    """No slice and no weight differs: what the whole model shows besides, and which layer of it."""
    if not found.whole.differs:
        found = replace(found, in_f32=dict(in_f32(asker)))
    differs = {what for what, answer in found.in_f32.items() if answer.differs}
    if differs - {TWIN}:
        return replace(found, rows=(*found.rows, *small_layers(asker, n)))
    places, why = see_in_place(asker)
    found = replace(found, places=tuple(places), no_places=why)
    layers = {tensor.split(".")[1] for each in places for tensor in each.tensors}
    if len(layers) == 1:  # or the embeddings, which no layer is asked about
        return found
    if found.whole.differs or differs or any(each.answer.differs for each in places):
        return replace(found, rows=(*found.rows, *by_number(asker, n)))
    return replace(found, others=others_of(asker)) if found.exit_code == 0 else found


def others_of(asker: SliceAsker) -> tuple[Verdict, ...]:
    """What else check would say that is wrong, or could not be compared."""
    asker.progress("what check asks besides")
    opened = open_plan(replace(asker.plan, suites=(), by_name=False), asker.progress)
    try:
        said = tuple(said_by_check(opened.context))
    finally:
        opened.close()
    wrong = tuple(verdict for verdict in said if verdict.status == "diverged")
    return wrong or tuple(verdict for verdict in said if verdict.status in UNANSWERED)


def outside(asker: SliceAsker) -> Iterator[LayerRow]:
    """Without the layers; and once more where eps matters, which else nobody would see."""
    asker.progress("embedding, norm and head")
    ask = half(asker, 0, {}, (*ATTENTION_OUT, *FFN_OUT))
    answer = plain(ask)
    if answer.differs:
        part, asked = part_of(OUTSIDE, ask, "embedding, output norm or output matrix")
        yield LayerRow(layer=None, answer=answer, parts=(part,), asked=asked)
        return
    yield LayerRow(layer=None, answer=answer)
    small = ask(smaller)
    assert small is not None
    yield LayerRow(layer=None, answer=small, parts=(EPS,) if small.differs else (), what=SMALL)


def of_layer(asker: SliceAsker, layer: int, n: int, likely: Collection[str] = ()) -> LayerRow:
    asker.progress(f"layer {layer} of {n}")
    try:
        role = asker.role(layer)
    except Unsupported as error:
        return LayerRow(layer=layer, answer=SliceAnswer(status="not-compared", summary=str(error)))
    answer = plain(half(asker, layer, role, ()))
    if not answer.differs:
        return LayerRow(layer=layer, answer=answer)
    return parts_of_layer(asker, layer, role, answer, likely)


def parts_of_layer(
    asker: SliceAsker,
    layer: int,
    role: Mapping[str, int],
    answer: SliceAnswer,
    likely: Collection[str],
) -> LayerRow:
    asked: dict[str, SliceAnswer] = {}
    parts: list[Part] = []
    for name, others, questions in (
        ("attention", FFN_OUT, OF_ATTENTION),
        ("FFN", ATTENTION_OUT, OF_FFN),
    ):
        ask = half(asker, layer, role, others)
        alone = plain(ask)
        asked[f"{name} alone"] = alone
        if not alone.differs:
            continue
        part, more = part_of(questions, ask, f"{name}: its matrices", likely)
        if name == "attention" and part.name.startswith("attention:"):
            part = heads(asker, layer, ask) or part
        asked |= {f"{name} alone, {words}": told for words, told in more.items()}
        parts.append(replace(part, name=in_half(name, part.name), asked_as=part.name))
    if not parts:
        words = "each half alone agrees"
        parts.append(Part(name="how attention and FFN are joined", words=words))
    return LayerRow(layer=layer, answer=answer, parts=tuple(parts), asked=asked)


def in_half(half: str, part: str) -> str:
    return part if part.startswith(half) else f"{half}: {part}"


def heads(asker: SliceAsker, layer: int, ask: Callable[[Maker], SliceAnswer | None]) -> Part | None:
    """The heads that are wrong alone, if there are right ones."""
    found = {head: ask(maker) for head, maker in heads_of(asker.file, layer)}
    wrong = [head for head, answer in found.items() if answer is not None and answer.differs]
    if not wrong or len(wrong) == len(found):
        return None
    named = ", ".join(map(str, wrong))
    return Part(name=f"heads {named}", words=f"{len(found) - len(wrong)} other heads agree")


def half(
    asker: SliceAsker, layer: int, role: Mapping[str, int], muted_parts: tuple[str, ...]
) -> Callable[[Maker], SliceAnswer | None]:
    """Asks on the layer's slice with some parts muted and one more made neutral."""

    def ask(maker: Maker) -> SliceAnswer | None:
        if maker(asker.file, layer) is None:
            return None
        own = maker(asker.file, layer)
        assert own is not None

        def make(file: GgufFile) -> Recipe:
            neutral = maker(file, layer)
            assert neutral is not None
            muting = off(muted_parts)(file, layer)
            assert muting is not None
            changes = {**neutral.changes, **muting.changes}
            recipe = slice_of(file, layer, role=role, changes=changes)
            recipe = replace(recipe, keys={**recipe.keys, **neutral.keys})
            return with_own_head(recipe) if neutral.own_head else recipe

        return asker.ask(make, own.given)

    return ask


def with_own_head(recipe: Recipe) -> Recipe:
    """Changed embeddings are not a changed head, where both are one matrix."""
    names = recipe.names
    return recipe if OUTPUT in names else replace(recipe, names={**names, OUTPUT: EMBEDDING})


def plain(ask: Callable[[Maker], SliceAnswer | None]) -> SliceAnswer:
    answer = ask(lambda file, layer: Neutral())
    assert answer is not None
    return answer


def by_number(asker: SliceAsker, n: int) -> list[LayerRow]:
    """No slice differs and the whole does: each layer alone at its own place, the others muted."""
    rows = []
    for layer in range(n):
        asker.progress(f"layer {layer} of {n} at its place")
        answer = asker.ask(lambda file, layer=layer: muted(file, layer))  # type: ignore[misc]
        part = Part(name="what the layer does by its number", words="its slice agrees")
        parts = (part,) if answer.differs else ()
        rows.append(LayerRow(layer=layer, answer=answer, parts=parts, what=AT_ITS_PLACE))
    return rows


def small_layers(asker: SliceAsker, n: int) -> list[LayerRow]:
    """Each layer's slice where activations are small: elsewhere nobody sees a wrong eps."""
    rows = []
    for layer in range(n):
        asker.progress(f"layer {layer} of {n}, small activations")
        try:
            role = asker.role(layer)
        except Unsupported:
            continue  # it has no slice, as its other row says
        answer = asker.ask(partial(with_small_activations, layer=layer, role=role))
        parts = (EPS,) if answer.differs else ()
        rows.append(LayerRow(layer=layer, answer=answer, parts=parts, what=SMALL))
    return rows
