"""Further runs of `logits` on a large model's first layers.

These runs vary the number of tokens in a batch, the choice of outputs, and the contents of the
cache. A fault in the handling of any of them shows in every layer. Runs of all layers take minutes
for a model of gigabytes. Fewer layers add up less rounding, so the limits are smaller as well. The
chosen layers include one layer of each kind, and each tensor in each type that the file uses for
it. Matrices keep their types.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.blackbox.asking import Make, SliceAsker
from lockstep.harness.blackbox.first_layers import enough_of, enough_types
from lockstep.harness.blackbox.long_context import layers_to_ask
from lockstep.harness.blackbox.offers import why_not_asked
from lockstep.harness.blackbox.probes import bisect_on_made, on_made_models, open_first
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import ALIKE, architecture, first_layers, n_layers
from lockstep.harness.check.check import Opened, Plan, run_suites
from lockstep.harness.context.further_runs import is_small, size_of
from lockstep.harness.context.suite import Context
from lockstep.harness.records import Verdict

SUITE = "logits"
KEY = "fewer layers"  # key of findings on these models
SHARE = 0.5  # share of a model's bytes; a larger slice saves hardly any work
AT_LEAST = 2  # number of layers; with the last layer alone, an engine may skip rows
# an engine that times out with fewer layers would also time out with all, so it is asked once
ENOUGH = ("agreed", "not-applicable", "timed-out")


def check_fewer_layers(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Yield verdicts on the model's first layers. Yield nothing if only the whole model can be
    tested."""
    if is_asked(context):
        yield from on_made_models(plan, context, SUITE, partial(ask_first_layers, context))


def is_asked(context: Context) -> bool:
    """Return True if `check` tests fewer layers. Small models and models with an encoder are not
    tested, nor are engines that show only one recorded run."""
    info, facts = context.subject_info, context.facts
    if context.given or info.partial or facts.decoder_start is not None or is_small(context.file):
        return False
    return not why_not_asked(context.subject.name, info.levels, (SUITE,))


def ask_first_layers(context: Context, asker: SliceAsker) -> Iterator[Verdict]:
    opened, words = opened_with(asker)
    if opened is None:
        return
    with closing(opened):
        found = list(run_suites(opened.context, (SUITE,)))
    if not says_all(found):
        return
    for verdict in found:
        # names the run that differs, so that a list of known failures excuses only this run
        places = ", ".join(filter(None, (words, verdict.detail.get("asked"))))
        detail = {**verdict.detail, "asked": places}
        text = f"{words}: {verdict.summary}"
        yield context.verdict(SUITE, verdict.status, text, detail, (verdict.key, KEY))


def says_all(found: list[Verdict]) -> bool:
    """Return True if these verdicts suffice: the usual run agrees, and each further run is
    conclusive."""
    enough = all(says_enough(verdict) for verdict in found[1:])
    return enough and bool(found) and found[0].status == "agreed"


def says_enough(verdict: Verdict) -> bool:
    detail = verdict.detail
    if verdict.status == "diverged":
        # a refusal has the key `question`
        return detail.get("at_fault") == "subject" and "question" not in detail
    return verdict.status in ENOUGH or "sequences" in detail


def opened_with(asker: SliceAsker) -> tuple[Opened | None, str]:
    """Open both engines on a model with fewer layers. Return the engines and a description of the
    model. The engines are None if no such model exists, or if an engine refuses it."""
    with suppress(Unsupported):
        n, total = layers_asked(asker), n_layers(asker.file)
        makes = ways_to_make(asker, n) if n < total else ()
        return open_first(asker, makes), f"its first {n} of {total} layers"
    return None, ""


def layers_asked(asker: SliceAsker) -> int:
    """Return the number of first layers to test. Raises Unsupported."""
    total, files = n_layers(asker.file), (asker.file, asker.subject_file)
    least = max(AT_LEAST, *(enough_types(file, total) for file in files))
    if architecture(asker.file) in ALIKE:
        return least
    return layers_to_ask(asker, lambda every: max(least, enough_of(every)))[0]


def ways_to_make(asker: SliceAsker, n: int) -> Iterator[Make]:
    """Yield functions that make a recipe: first with few tokens of a large vocabulary, then with
    all tokens. Recipes that keep too much of the model are omitted."""

    def few(file: GgufFile) -> Recipe:
        return asker.with_few_tokens(file, first_layers(file, n))

    def every(file: GgufFile) -> Recipe:
        return first_layers(file, n)

    for recipe_of in (few, every):
        if n_bytes(asker.file, recipe_of(asker.file)) <= SHARE * size_of(asker.file):
            yield recipe_of


def n_bytes(file: GgufFile, recipe: Recipe) -> int:
    """Return the number of bytes that the recipe keeps; matrices keep their types."""
    found = 0
    for new, old in recipe.names.items():
        tensor, rows = file.tensors[old], recipe.rows.get(new)
        kept = 1.0 if rows is None else len(rows) / tensor.ne[-1]
        found += int(tensor.n_bytes * kept)
    return found


def bisect_fewer_layers(plan: Plan, context: Context) -> Bisection | None:
    """Bisect the runs of `check_fewer_layers`, if no op is wrong in the usual run of the whole
    model. Return None if no op is wrong in these runs either, or if these runs are not made."""
    if not is_asked(context):
        return None
    return bisect_on_made(plan, context, bisect_first_layers)


def bisect_first_layers(asker: SliceAsker) -> Bisection | None:
    opened, words = opened_with(asker)
    if opened is None:
        return None
    with closing(opened):
        found = bisect(opened.context)
    asked = ", ".join(filter(None, (words, found.asked)))
    return replace(found, asked=asked) if found.culprits else None
