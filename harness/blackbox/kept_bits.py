"""Tests of the engine's precision: does it distinguish numbers that are equal in F16 or BF16?

The engine runs a few layers in F32 whose embeddings are powers of two. Then it runs the same layers
with every other column a little larger, by less than half a step of F16. A second test changes the
matrices in the same way. An engine that keeps these numbers in half precision rounds the change
away, and gives the same bits. An engine that rounds only its logits gives other bits, because some
of the thousands of logits round differently.
"""

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.blackbox.changes import Change
from lockstep.harness.blackbox.parts import EMBEDDING
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import first_layers
from lockstep.harness.check.check import Opened, Plan
from lockstep.harness.judging.compare import same_bits
from lockstep.harness.records import Evaluation, Request
from lockstep.harness.sites import IN_A_LAYER
from lockstep.harness.synth.twin import KEPT

# Relative to a power of two, half a step of F16 is 2^-11, and of BF16 2^-8. LITTLE leaves room for
# engines that scale embeddings before they round. MORE_THAN_F16 lies between both steps.
# MORE_THAN_BF16 survives every rounding.
LITTLE, MORE_THAN_F16, MORE_THAN_BF16 = 2.0**-16, 2.0**-9, 2.0**-6
EACH = 4  # one in so many tokens keeps its embedding, and its logit shows the result for any head
Run = Callable[[Recipe], Evaluation]  # runs the engine under test on a model of this recipe
NORM_BEHIND = "token_embd_norm.weight"  # an engine may compute this norm before it rounds


def kept_in(file: GgufFile, layers: int, run: Run) -> str | None:
    """Return "F16" or "BF16" if the engine keeps numbers in that type. Return "" if it
    distinguishes numbers that are equal in both types, or if its outputs do not depend on these
    numbers. Return None if the type is unknown. Raises NoAnswer or EngineError. layers: the number
    of first layers in the tested model."""
    names = first_layers(file, layers).names
    inside = [n for n in names if IN_A_LAYER.fullmatch(n) and file.tensors[n].type.name not in KEPT]

    def asked(some: Collection[str], more: float) -> F32:
        changes = dict.fromkeys(some, to_powers_of_two(more, but=EACH * (EMBEDDING in some)))
        recipe = replace(first_layers(file, layers), stored=frozenset(), changes=changes)
        return np.concatenate(run(recipe).logits)[:, EACH - 1 :: EACH]

    unsteady = False
    for some in ([EMBEDDING], inside):
        first = asked(some, 0.0)
        if same_bits(first, asked(some, LITTLE)):
            if same_bits(first, asked(some, MORE_THAN_BF16)):
                return ""  # the engine ignores these bits
            return "BF16" if same_bits(first, asked(some, MORE_THAN_F16)) else "F16"
        unsteady = unsteady or not same_bits(first, asked(some, 0.0))
    return None if unsteady or NORM_BEHIND in names else ""


def to_powers_of_two(more: float, but: int = 0) -> Change:
    """Return a change that rounds values to powers of two.

    more: the fraction that is then added to every other column; but: the size of groups of rows
    whose last row gets no addition, 0 if all rows get the addition.
    """

    def change(rows: F32, start: int) -> F32:
        with np.errstate(divide="ignore"):
            found = np.sign(rows) * np.exp2(np.rint(np.log2(np.abs(rows))))
        numbers = start + np.arange(len(rows))
        larger = (numbers % but != but - 1) if but else np.ones(len(rows), bool)
        found[np.ix_(larger, np.arange(1, rows.shape[1], 2))] *= 1 + more
        return found.astype(np.float32)

    return change


def run_alone(opening: Callable[[Plan], Opened], plan: Plan) -> Evaluation:
    """Return the usual run of the engine under test. The plan's model is deleted afterwards."""
    try:
        with closing(opening(plan)) as opened:
            request = Request(batches=opened.context.batches)
            found: Evaluation = opened.context.ask(opened.context.subject, "evaluate", request)
            return found
    finally:
        plan.model.unlink()
