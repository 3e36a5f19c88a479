"""The choice of tokens: does an engine choose each id if it is the likeliest?

Text seldom ends within a few tokens, and the last id of a vocabulary is almost never the likeliest.
So the user's model does not show that an engine's greedy search ends one id early. Therefore both
engines get a model whose layers add nothing, and whose head equals its embeddings, which are rows
of signs. After each token, the likeliest token by far is the same token again.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.changes import signs
from lockstep.harness.blackbox.parts import (
    EMBEDDING,
    OUTPUT,
    norms_do_nothing,
    off,
    scale_of_embeddings,
)
from lockstep.harness.blackbox.probes import CHOICES as SUITE
from lockstep.harness.blackbox.probes import asked_to_choose
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import slice_of
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import MADE_MODEL, Answered, Evaluation, Request, Verdict
from lockstep.harness.sites import ENDS_OF_HALVES
from lockstep.harness.suites.parts.control_tokens import clear_places, ids_of_control
from lockstep.harness.suites.parts.prompts_in_turn import chosen_behind

MOST = 8  # number of control tokens, including the first and the last
EDGES = (256, 32768, 65536)  # ids beyond a byte, beyond signed 16 bits, and beyond unsigned 16 bits
# Size of the largest logit. A cap of 30 still leaves it above the others. It has two digits where
# other logits have one, which reveals engines that compare numbers as texts: "16" is less than "5".
LOUD = 16.0
WHERE = "on a model that repeats its last token"


def check_own_tokens(plan: Plan, context: Context) -> Iterator[Verdict]:
    words = "tokens of a model that repeats its last token"
    yield from asked_to_choose(plan, context, words, recipe_of, judge_choices, every_id=True)


def recipe_of(file: GgufFile) -> Recipe:
    before, muted = norms_do_nothing(file, 0), off(ENDS_OF_HALVES)(file, 0)
    assert muted is not None
    width = file.tensors[EMBEDDING].ne[0]
    size = 2.0 ** np.floor(np.log2(LOUD / width))
    tables = {EMBEDDING: signs(1 / scale_of_embeddings(file))}
    if OUTPUT in file.tensors:
        tables[OUTPUT] = signs(float(size))
    recipe = slice_of(file, 0, role={}, changes={**before.changes, **muted.changes, **tables})
    return Recipe(names=recipe.names, keys={**recipe.keys, **before.keys}, changes=recipe.changes)


def judge_choices(outer: Context, context: Context) -> Iterator[Verdict]:
    """Yield a verdict on the tokens that the subject chooses. Ids that the oracle does not clearly
    choose are skipped.

    context: the probe model's context; outer: the context of the user's model.
    """
    ids = ids_to_choose(context)
    batch = Batch.of(ids.tolist())
    context = replace(context, given=(batch,))  # the noise is measured on this batch
    outcome = context.oracle.ask("evaluate", Request(batches=(batch,)))
    if not isinstance(outcome, Answered):
        return
    run: Evaluation = outcome.value
    (logits,) = run.logits
    allowed = 2 * float(whole_run(context.noise.relative, largest(logits)).allowed)
    clear = set(clear_places(logits, allowed).tolist())
    same: list[int] = []
    for at, wanted in enumerate(ids.tolist()):
        if at not in clear or int(logits[at].argmax()) != wanted:
            continue
        found = chosen_behind(context, ids[: at + 1].tolist())
        if found is None:
            return
        if found != wanted:
            yield another(outer, ids[: at + 1], found, logits[at], allowed)
            return
        same.append(wanted)
    if same:
        n, of = context.facts.n_vocab, outer.facts.n_vocab
        cut = f" (this model has {n} of {of} tokens)" * (n != of)
        text = f"{WHERE} the engine chooses {', '.join(map(str, same))}{cut}"
        yield outer.verdict(SUITE, "agreed", text)


def another(
    context: Context, ids: NDArray[np.intp], found: int, row: NDArray[np.float32], allowed: float
) -> Verdict:
    wanted, n = int(ids[-1]), len(row)
    margin = float(row[wanted] - row[found]) if 0 <= found < n else float("inf")
    which = {0: ", the first id", n - 1: f", the last of {n} ids"}.get(wanted, "")
    text = (
        f"{WHERE}: after {', '.join(map(str, ids))} the engine chooses {found}, and the "
        f"oracle chooses {wanted}{which}, whose logit is higher by {margin:.2g} (allowed "
        f"{allowed:.2g})"
    )
    detail: dict[str, Any] = {
        "at_fault": "subject",
        "expected": wanted,
        "actual": found,
        MADE_MODEL: True,
    }
    detail |= {"allowed": allowed, "asked": f"token {wanted} after itself"}
    if 0 <= found < n:
        detail["margin"] = margin
    return context.verdict(SUITE, "diverged", text, detail, key=(SUITE, "own token"))


def ids_to_choose(context: Context) -> NDArray[np.intp]:
    """Return the ids to choose, with the last id at the end. So an engine that never chooses the
    last id fails only after it has chosen all other ids."""
    last = context.facts.n_vocab - 1
    controls = np.setdiff1d(ids_of_control(context), [0, last])[: MOST - 2]
    others = np.setdiff1d([*controls, *(edge for edge in EDGES if edge < last)], [0, last])
    return np.array([0, *others, last], np.intp)
