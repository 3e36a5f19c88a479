"""Engines that choose tokens, on a model that is made of the user's for one question."""

from collections.abc import Callable, Iterator
from math import prod

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.asking import SliceAsker, on_made_models
from lockstep.harness.blackbox.few_tokens import OF_TOKENS
from lockstep.harness.blackbox.offers import why_not_asked
from lockstep.harness.blackbox.parts import EMBEDDING
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import n_layers
from lockstep.harness.check.check import BadInput, Plan
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import Verdict

SUITE = "decode"
LARGEST = 1 << 26  # numbers in a table of embeddings that cannot be cut: both engines read it
WHOLE = 1 << 25  # in all tables of one that can be, and is not where ids matter: 128 MB


def asked_to_choose(
    plan: Plan,
    context: Context,
    words: str,
    recipe_of: Callable[[GgufFile], Recipe],
    said: Callable[[Context, Context], Iterator[Verdict]],
    *,
    every_id: bool = False,
) -> Iterator[Verdict]:
    """recipe_of: how the model is made; said: what is said of it, of the user's context and of that
    of the made model; every_id: which has all ids of the user's, unless its tables were too large.
    Nobody is held to a model that nobody has trained."""
    levels = context.subject_info.levels
    if (levels is not None and "greedy" not in levels) or context.facts.decoder_start is not None:
        return

    def work(asker: SliceAsker) -> Iterator[Verdict]:
        table = asker.file.tensors.get(EMBEDDING)
        if table is None:
            return
        whole = every_id and size_of_tables(asker.file) <= WHOLE

        def make(file: GgufFile) -> Recipe:
            recipe = recipe_of(file)
            return recipe if whole else asker.with_few_tokens(file, recipe)

        n_layers(asker.file)  # raises Unsupported for what cannot be sliced
        if prod(table.ne) > LARGEST and not make(asker.file).rows:
            return
        context.progress(words)
        try:
            opened = asker.open(asker.made(make))
        except (NoAnswer, BadInput):
            return
        try:
            yield from said(context, opened.context)
        except NoAnswer as error:
            text = f"{words}, on a model made of this one: {error}"
            yield context.verdict(SUITE, "not-applicable", text)
        finally:
            opened.close()

    if not why_not_asked(context.subject.name, levels, ("greedy",)):
        yield from on_made_models(plan, context, SUITE, work)


def size_of_tables(file: GgufFile) -> int:
    return sum(prod(file.tensors[name].ne) for name in OF_TOKENS if name in file.tensors)
