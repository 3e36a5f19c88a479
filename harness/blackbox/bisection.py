"""`lockstep bisect --black-box`: find the wrong layer and its wrong part in an engine without
tensors.

The parts outside the layers are tested alone, then each layer. All these models are in F32, so
nothing is converted and limits are small. Then lenses show the decoded weights. If slices and
lenses agree, the bisection makes the other runs of `check`: the whole model in F32, and the other
suites.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lockstep.engine.errors import Unsupported
from lockstep.harness.bisect.bisection import UNANSWERED, said_by_check
from lockstep.harness.blackbox import (
    fewer_layers,
    long_context,
    long_prompt,
    own_prompts,
    own_token,
    several_threads,
)
from lockstep.harness.blackbox.asking import NotSteady, SliceAnswer, SliceAsker
from lockstep.harness.blackbox.in_halves import NOT_WEIGHTS
from lockstep.harness.blackbox.large_gates import with_large_gates
from lockstep.harness.blackbox.layers import (
    LayerRow,
    as_it_is,
    half,
    of_its_own,
    of_layer,
    role_of_any,
    role_or_place,
)
from lockstep.harness.blackbox.looking import Looked, look
from lockstep.harness.blackbox.naming import (
    FAILS,
    FAILS_MUTED,
    OF_ATTENTION,
    Asked,
    Part,
    of_another_base,
    part_outside,
)
from lockstep.harness.blackbox.numbers import (
    are_of_one_number,
    are_of_other_numbers,
    by_number,
    counted_otherwise,
    guilty_among,
)
from lockstep.harness.blackbox.offers import why_not_asked
from lockstep.harness.blackbox.parts import Maker, larger, smaller
from lockstep.harness.blackbox.places import SeenInPlace, see_in_place
from lockstep.harness.blackbox.probes import CHOICES
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.several_threads import LISTS, LOGITS, TEXTS, TOKENS, check_threads
from lockstep.harness.blackbox.slices import SCALES, n_layers
from lockstep.harness.blackbox.slices import small as with_small_activations
from lockstep.harness.blackbox.time_steps import with_large_steps
from lockstep.harness.blackbox.whole import (
    GATES,
    SMALL,
    STEPS,
    TWIN,
    groups_of,
    in_f32,
    is_small_enough,
    words_of,
)
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.locate.locate import LEVELS
from lockstep.harness.records import EngineInfo, Verdict
from lockstep.harness.sites import ENDS_OF_HALVES
from lockstep.harness.suites.decode import PROMPTS, TEXT, THREADS
from lockstep.harness.suites.logits import FEWER_LAYERS
from lockstep.harness.suites.logprobs import THREADS as THREADS_OF_LISTS
from lockstep.harness.suites.text import PROMPTS as PROMPTS_OF_TEXT
from lockstep.harness.suites.text import THREADS as THREADS_OF_TEXTS

NO_LENS = "weights: lenses need the last norm and the head, which differ"
EPS_OR_SCALE = "eps, or the scale of embeddings"
EPS = Part(name="eps", words="the engines differ on a model with small activations")
ACTIVATION = Part(name="FFN: activation", words="the engines differ on a model with large gates")
STEP = Part(
    name="softplus of the time step", words="the engines differ on a model with large time steps"
)


@dataclass(frozen=True, kw_only=True)
class BlackBoxBisection:
    rows: tuple[LayerRow, ...]
    lenses: tuple[Looked, ...]
    whole: SliceAnswer
    places: tuple[SeenInPlace, ...] = ()
    # the reason why these models cannot be made, or not be used with this engine
    no_places: str = ""
    # descriptions of the questions that were not asked, with reasons
    left_out: tuple[str, ...] = ()
    # by description: answers on F32 versions of the whole model
    in_f32: Mapping[str, SliceAnswer] = field(default_factory=dict)
    others: tuple[Verdict, ...] = ()  # other findings of check, if all of the above agree

    @property
    def guilty(self) -> tuple[LayerRow, ...]:
        return tuple(row for row in self.rows if row.answer.differs)

    @property
    def exit_code(self) -> int:
        """Return 1 if anything diverges, 0 if nothing is missing and everything agrees, else 3."""
        answers = [*(row.answer for row in self.rows), *(look.answer for look in self.lenses)]
        answers += [*self.in_f32.values(), *(seen.answer for seen in self.places)]
        others = {verdict.status for verdict in self.others}
        if "diverged" in others or any(a.status == "diverged" for a in (*answers, self.whole)):
            return 1
        known = all(answer.status in ("agreed", "not-applicable") for answer in answers)
        all_known = known and not self.left_out and not self.others
        return 0 if all_known and self.whole.agrees else 3


def bisect_black_box(asker: SliceAsker) -> BlackBoxBisection:
    """Bisect without tensors, by the engine's answers on probe models. Raises NoAnswer if the
    engine cannot be asked about probe models."""
    try:
        return bisect_steady(asker)
    except NotSteady as error:
        whole = SliceAnswer(status="diverged", summary=str(error))
        left_out = (
            "layers and parts: one difference proves nothing, as the engine is not deterministic",
        )
        return BlackBoxBisection(rows=(), lenses=(), whole=whole, left_out=left_out)


def bisect_steady(asker: SliceAsker) -> BlackBoxBisection:
    n, left_out = n_layers(asker.file), []
    check_can_be_asked(asker)
    rows = list(outside(asker))
    check_can_be_asked(asker, rows[0].answer.engines)
    if any(row.answer.differs for row in rows):
        left_out.append(f"{n} layers: their slices contain the fault outside the layers too")
    else:
        rows += of_layers(asker, n)
    halves = any(row.answer.is_in_halves for row in rows)
    lenses, unseen = ([], [NO_LENS]) if rows[0].answer.differs else look(asker)
    if halves:  # only large errors are seen
        lenses = [each for each in lenses if each.answer.differs]
        unseen = [NOT_WEIGHTS, *unseen]
    asker.progress("the whole model")
    whole = asker.answer_to(asker.plan)
    answers = [*(row.answer for row in rows), *(look.answer for look in lenses)]
    found = BlackBoxBisection(
        rows=tuple(rows),
        lenses=tuple(lenses),
        whole=whole,
        left_out=(*left_out, *unseen),
    )
    seen = any(answer.differs for answer in answers)
    return found if seen or halves else of_the_whole(asker, found, n)


def of_layers(asker: SliceAsker, n: int) -> list[LayerRow]:
    rows: list[LayerRow] = []
    for layer in range(n):
        known = {part.name: part for row in rows for part in row.parts}
        row = of_layer(asker, layer, n, list(known.values()))
        rows.append(of_its_own(asker, row, rows))
    if are_of_one_number(asker, rows, n):
        return by_number(asker, n)
    if are_of_other_numbers(asker, rows, n):
        return counted_otherwise(rows, by_number(asker, n))
    return rows


def check_can_be_asked(asker: SliceAsker, engines: Sequence[EngineInfo] = ()) -> None:
    levels = engines[1].levels if engines else None  # the oracle is first
    if text := why_not_asked(asker.plan.engine, levels):
        raise NoAnswer("not-compared", text, {LEVELS: levels or ()})


def of_the_whole(asker: SliceAsker, found: BlackBoxBisection, n: int) -> BlackBoxBisection:
    """Bisect the whole model if no slice and no weight differs. Find the probe that shows the
    fault, and the layer."""
    if not found.whole.differs:
        found = replace(found, in_f32=dict(in_f32(asker)))
    differs = {what for what, answer in found.in_f32.items() if answer.differs}
    if not is_small_enough(asker):
        wrong = [group for group in groups_of(asker) if words_of(group) in differs]
        if rows := [row for group in wrong for row in guilty_among(asker, group)]:
            return replace(found, rows=(*found.rows, *rows))
    elif made := [made for what, made in MADE.items() if what in differs]:
        rows = [row for each in made for row in layers_made(asker, n, each)]
        return replace(found, rows=(*found.rows, *rows))
    places, why = see_in_place(asker)
    found = replace(found, places=tuple(places), no_places=why)
    if TWIN in found.in_f32 and not differs and names_one(places):
        return found  # in F32 nothing is wrong, so the finding at the place is the result
    if found.whole.differs or differs or any(each.answer.differs for each in places):
        return replace(found, rows=(*found.rows, *by_number(asker, n)))
    return replace(found, others=others_of(asker)) if found.exit_code == 0 else found


def names_one(places: Sequence[SeenInPlace]) -> bool:
    return len({tensor for each in places for tensor in each.tensors}) == 1


def others_of(asker: SliceAsker) -> tuple[Verdict, ...]:
    """Make the other runs of `check`, and return the verdicts that diverge. If none diverges,
    return the verdicts for questions that an engine did not answer."""
    asker.progress("the further runs of check")
    plan = replace(asker.plan, suites=(), by_name=False)
    opened = asker.open(plan)
    opened.context.on_made_models = questions_besides(plan)
    try:
        said = tuple(said_by_check(opened.context))
    finally:
        opened.close()
    wrong = tuple(verdict for verdict in said if verdict.status == "diverged")
    return wrong or tuple(verdict for verdict in said if verdict.status in UNANSWERED)


def questions_besides(plan: Plan) -> dict[str, Callable[[Context], Iterator[Verdict]]]:
    """Return the questions about probe models that the bisection itself does not ask, by suite
    name."""
    return {
        long_context.SUITE: partial(long_prompt.long_texts, plan),
        CHOICES: partial(own_token.check_own_tokens, plan),
        PROMPTS: partial(own_prompts.check_own_prompts, plan),
        TEXT: partial(own_prompts.text_checked, plan),
        PROMPTS_OF_TEXT: partial(own_prompts.check_long_prompts, plan),
        LOGITS.suite: partial(several_threads.check_several_threads, plan),
        THREADS: partial(check_threads, TOKENS, plan),
        THREADS_OF_LISTS: partial(check_threads, LISTS, plan),
        THREADS_OF_TEXTS: partial(check_threads, TEXTS, plan),
        FEWER_LAYERS: partial(fewer_layers.check_fewer_layers, plan),
    }


def outside(asker: SliceAsker) -> Iterator[LayerRow]:
    """Yield rows for the parts outside the layers. If these parts agree, compare again with small
    embeddings, because no other run shows a wrong eps."""
    ask = without_layers(asker)
    answer = as_it_is(ask)
    asked = Asked(ask=ask)
    if answer.is_no_number and (part := asked.first_of(OF_ATTENTION)):
        text = f"a muted layer gives NaN or infinity: {part.words}"
        yield LayerRow(layer=None, answer=replace(answer, status="not-compared", summary=text))
        return
    if answer.differs:
        of_logits = shows_logits(answer)
        fails = FAILS_MUTED if role_of_any(asker) is None else FAILS
        part = fails
        if answer.status == "diverged":
            part = of_another_base(answer) or part_outside(asked, of_logits=of_logits)
        part = told_from_scale(asker, part) if part.name == EPS.name else part
        yield LayerRow(layer=None, answer=answer, parts=(part,), asked=asked.found)
        return
    yield LayerRow(layer=None, answer=answer)
    small = ask(smaller)
    assert small is not None
    parts = (told_from_scale(asker, EPS),) if small.differs else ()
    yield LayerRow(layer=None, answer=small, parts=parts, what=MADE[SMALL].words)


def without_layers(asker: SliceAsker) -> Callable[[Maker], SliceAnswer | None]:
    asker.progress("embedding, norm and head")
    role = role_of_any(asker)
    return half(asker, 0, role, (*ENDS_OF_HALVES, *SCALES), every_token=True)


def shows_logits(answer: SliceAnswer) -> bool:
    levels = answer.engines[1].levels if answer.engines else None  # the oracle is first
    return levels is None or "logits" in levels


def told_from_scale(asker: SliceAsker, eps: Part) -> Part:
    """Return the eps part if the first layer agrees on larger inputs, else the part "eps, or the
    scale of embeddings". A norm removes the scale of embeddings, so a wrong scale shows only if a
    layer adds its output to them."""
    try:
        answer = half(asker, 0, role_or_place(asker, 0), ())(larger)
    except Unsupported:
        answer = None
    alone = answer is not None and answer.agrees
    return eps if alone else replace(eps, name=EPS_OR_SCALE)


@dataclass(frozen=True, kw_only=True)
class MadeToShow:
    """A change to a layer's slice that makes a fault of `part` visible."""

    words: str
    make: Callable[..., Recipe]
    part: Part  # the part that is at fault if the engines agree on this model


MADE = {
    SMALL: MadeToShow(words="small activations", make=with_small_activations, part=EPS),
    STEPS: MadeToShow(words="large time steps", make=with_large_steps, part=STEP),
    GATES: MadeToShow(words="large gates", make=with_large_gates, part=ACTIVATION),
}


def layers_made(asker: SliceAsker, n: int, made: MadeToShow) -> list[LayerRow]:
    """Return the rows of all layers' slices with this change. If no slice differs, test each layer
    at its place in the model, and add the rows that differ."""
    rows = [row for layer in range(n) if (row := layer_made(asker, n, layer, made))]
    if any(row.answer.differs for row in rows):
        return rows
    there = [layer_made(asker, n, layer, made, place=True) for layer in range(n)]
    return rows + [row for row in there if row and row.answer.differs]


def layer_made(
    asker: SliceAsker, n: int, layer: int, made: MadeToShow, *, place: bool = False
) -> LayerRow | None:
    """Return the row of a layer with this change; None if the layer has no slice. Another row
    reports a missing slice. place: test the layer at its place."""
    asker.progress(f"layer {layer} of {n}, {made.words}")
    try:
        role = None if place else role_or_place(asker, layer)
    except Unsupported:
        return None
    answer = asker.ask_of_layer(partial(made.make, layer=layer, role=role))
    parts = (made.part,) if answer.differs else ()
    return LayerRow(
        layer=layer, answer=answer, parts=parts, what=made.words + ", at its place" * place
    )
