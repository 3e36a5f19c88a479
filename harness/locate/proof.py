"""The proof of a bisection: if the oracle's tensors replace the wrong ones, the outputs are right.

The outputs are compared with the oracle's. They are also compared with the outputs of honest
engines of other designs, with the same replacements. Such a design has, for example, no conversions
of activations, or no GELU table.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.harness.context.suite import Context
from lockstep.harness.graph.aliases import places_by_site
from lockstep.harness.graph.floor import whole
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.ways import Wide
from lockstep.harness.graph.wiring import wires_of
from lockstep.harness.judging.compare import largest, mismatch_between, worst_distance
from lockstep.harness.judging.conversions import builds, is_quantised
from lockstep.harness.judging.findings import Findings, Values
from lockstep.harness.judging.tolerances import Bound, whole_run
from lockstep.harness.locate.locate import oracles_outputs, outputs_of, replaceable
from lockstep.harness.locate.nodes import build_of, record_program

OUTPUTS = ("result_output", "result_embd_pooled")  # names of a graph's results
Rows = NDArray[Any]  # (outputs, vocabulary or width) of all batches together


@dataclass(frozen=True, kw_only=True, eq=False)
class Patched:
    """The result of the subject's run in which the oracle's tensors replace only the wrong
    tensors."""

    sites: int
    before: float  # worst error of a logit in the subject's own run, relative to the largest
    worst: float  # worst error of a logit in the patched run
    bound: Bound
    allowed: float  # limit relative to the largest logit
    # True: the logits differed before the patch; otherwise agreement confirms nothing
    differed: bool
    agrees: bool
    what: str = "logit"
    otherwise: bool = False  # True: compared with honest runs of another design than the oracle's
    # True: the outputs themselves were put in, so they do not confirm the rest
    at_the_end: bool = False

    @property
    def explains(self) -> bool:
        """Return True if the patch removes nine tenths of a difference, which noise cannot
        explain."""
        return self.before > 0 and self.worst <= self.before / 10

    @property
    def confirms(self) -> bool:
        return self.agrees and (self.differed or self.explains)


def patch(context: Context, found: Findings) -> Patched:
    """Replace the results of the wrong ops. If no other op is wrong, the outputs must then agree.

    The oracle's values may differ more from an honest engine that converts no activations than many
    faults do. Therefore the outputs are also compared with honest runs of other designs.
    """
    values = replaceable(context, found.values)
    context.progress(f"putting in the oracle's tensor at {len(values)} sites")
    own, healed = (
        np.concatenate(outputs_of(context, context.subject, found, put_in))
        for put_in in (None, values)
    )
    expected = np.concatenate(oracles_outputs(context, found))
    first = held_against((expected, expected), (own, healed), context.noise.relative)
    at_the_end = any(site.name in OUTPUTS for site in values)
    first = dataclasses.replace(first, sites=len(values), what=found.what, at_the_end=at_the_end)
    if first.confirms or not found.own_inputs or not values:
        return first
    noise, best = context.noise_on(context.batches), first
    for right in other_designs(context):
        other = held_against((right({}), right(values)), (own, healed), noise)
        other = dataclasses.replace(other, sites=first.sites, what=found.what, otherwise=True)
        other = dataclasses.replace(other, at_the_end=at_the_end)
        if other.confirms:
            return other
        if other.agrees and not best.agrees:
            best = other
    return best


def held_against(expected: tuple[Rows, Rows], found: tuple[Rows, Rows], noise: float) -> Patched:
    """Compare two runs of each engine, the unchanged run and the run with replaced tensors."""
    size = largest(expected[1])
    bound = whole_run(noise, size)
    before, worst = (
        worst_distance(a, b) / (size or 1.0) for a, b in zip(expected, found, strict=True)
    )
    differed, differs = (
        mismatch_between(a, b, bound.allowed) is not None
        for a, b in zip(expected, found, strict=True)
    )
    return Patched(
        sites=0,
        before=before,
        worst=worst,
        bound=bound,
        allowed=float(bound.allowed) / (size or 1.0),
        differed=differed,
        agrees=not differs,
    )


def other_designs(context: Context) -> Iterator[Callable[[Values], Rows]]:
    """Yield functions that run an honest engine without ggml's roundings, with replaced values. For
    a quantised model, some of these engines also convert activations differently."""
    context.progress("patching honest runs of other designs with the same tensors")
    program = record_program(context)
    places = places_by_site(program, wires_of(program))

    def run(build: Build, values: Values) -> Rows:
        given = {places[site]: value for site, value in values.items() if site in places}
        found = replay(program, context.file, build, Wide(sizes=False), values=given)
        return np.concatenate(whole(found)).astype(np.float32)

    for build in unrounded_builds(build_of(context), quantised=is_quantised(context.file)):
        yield partial(run, build)


def unrounded_builds(build: Build, *, quantised: bool) -> Iterator[Build]:
    yield replace(build, plain=True)
    if quantised:
        yield from builds(build)
