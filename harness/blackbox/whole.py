"""Tests of the whole model in F32, also with small activations, large time steps or large gates. A
large model is tested in groups of layers at their places.

`check` makes these tests of an engine without tensors, and `bisect --black-box` makes them before
it reports agreement. Without conversions, a fault of the graph shows if its error is at least about
1e-5. A wrong eps shows only with small activations.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from lockstep.harness.bisect.bisection import OF_TWIN, Bisection, bisect_run
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker, holds_quantised
from lockstep.harness.blackbox.in_halves import computes_in_halves, explain_embeddings
from lockstep.harness.blackbox.large_gates import has_gates, with_large_gates
from lockstep.harness.blackbox.offers import embeds
from lockstep.harness.blackbox.probes import NO_ROOM, bisect_on_made
from lockstep.harness.blackbox.slices import at_their_places, n_layers, small
from lockstep.harness.blackbox.time_steps import has_steps, with_large_steps
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context
from lockstep.harness.sites import IN_A_LAYER
from lockstep.harness.synth.twin import write_twin

LARGEST_TWIN = 1 << 30  # bytes; two engines hold the model at once
TWIN, SMALL = "the F32 twin", "the model made with small activations"
STEPS = "the model made with large time steps"
GATES = "the model made with large gates"


def is_small_enough(asker: SliceAsker) -> bool:
    """Return True if the F32 twin is small enough. If not, each layer's slice is tested alone, and
    then groups of layers at their places."""
    return sum(4 * info.n_elements for info in asker.file.tensors.values()) <= LARGEST_TWIN


def is_quantised(asker: SliceAsker) -> bool:
    return holds_quantised(asker.file)


def in_f32(asker: SliceAsker) -> Iterator[tuple[str, SliceAnswer]]:
    """Yield each question with its answer, until the engines differ. A fault of the twin shows in
    every question."""
    if not is_small_enough(asker):
        yield from in_groups(asker)
        return
    asks: dict[str, Callable[[], SliceAnswer]] = {}
    if is_quantised(asker):
        asks[TWIN] = partial(twin, asker)
    asks[SMALL] = partial(asker.ask, small)
    if has_steps(asker.file):
        asks[STEPS] = partial(asker.ask, with_large_steps)
    if has_gates(asker.file):
        asks[GATES] = partial(asker.ask, with_large_gates)
    for what, ask in asks.items():
        asker.progress(what)
        answer = ask()
        yield what, answer
        if answer.differs:
            return


def in_groups(asker: SliceAsker) -> Iterator[tuple[str, SliceAnswer]]:
    """Yield each group of layers with its answer. No slice shows a fault that depends on a layer's
    number, and in the stored model conversions of activations may hide it."""
    for layers in groups_of(asker):
        words = words_of(layers)
        asker.progress(words)
        yield words, asker.ask_of_layer(partial(at_their_places, layers=layers))


def groups_of(asker: SliceAsker) -> list[range]:
    """Return groups of neighbouring layers. In F32 a group needs at most the memory of a twin, or
    is a single layer."""
    sizes: Counter[int] = Counter()
    for name, info in asker.file.tensors.items():
        if inside := IN_A_LAYER.fullmatch(name):
            sizes[int(inside[1])] += 4 * info.n_elements
    starts, room = [0], LARGEST_TWIN
    for layer in range(n_layers(asker.file)):
        if sizes[layer] > room and layer > starts[-1]:
            starts.append(layer)
            room = LARGEST_TWIN
        room -= sizes[layer]
    ends = [*starts[1:], n_layers(asker.file)]
    return list(map(range, starts, ends))


def words_of(layers: range) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]} at its place"
    return f"layers {layers[0]} to {layers[-1]} at their places"


def twin(asker: SliceAsker) -> SliceAnswer:
    """Ask both engines about the whole model in F32."""
    with twin_of(asker) as plan:
        return asker.answer_to(plan)


@contextmanager
def twin_of(asker: SliceAsker) -> Iterator[Plan]:
    """Yield the plan for the F32 twins of both files. A subject's file without quantised weights is
    used as it is."""
    asker.progress("the F32 twin")
    made = {asker.plan.model: asker.folder / "twin.gguf"}
    if asker.subject_file is not asker.file and holds_quantised(asker.subject_file):
        made[asker.plan.subject_model] = asker.folder / "subject.gguf"
    try:
        for model, twin in made.items():
            write_twin(model, twin)
        theirs = made.get(asker.plan.subject_model, asker.plan.subject_model)
        yield replace(asker.plan, model=made[asker.plan.model], subject_model=theirs)
    finally:
        for path in made.values():
            path.unlink(missing_ok=True)


def bisect_twin(plan: Plan, context: Context) -> Bisection | None:
    """Bisect the F32 twin by the tensors that the engine shows. Return None if the tensors show no
    place, or if the twin needs too much space."""

    def work(asker: SliceAsker) -> Bisection | None:
        if not (is_small_enough(asker) and is_quantised(asker)):
            return None
        with twin_of(asker) as of_twin:
            return bisected_on(asker, of_twin)

    try:
        return bisect_on_made(plan, context, work)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return None


def bisected_on(asker: SliceAsker, plan: Plan) -> Bisection | None:
    with closing(asker.open(plan)) as opened:
        found = bisect_run(opened.context)
        if not found.culprits or in_halves(opened.context, asker):
            return None
        return replace(found, asked=OF_TWIN)


def in_halves(context: Context, asker: SliceAsker) -> bool:
    """Return True if the engine computes in half precision. Then every op exceeds its limit in
    F32."""
    if embeds(context):
        return explain_embeddings(context) is not None
    return bool(asker.halves) or computes_in_halves(context, lambda: asker.halves)
