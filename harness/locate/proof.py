"""The proof of a bisection: with the oracle's tensors at the guilty sites the outputs are right.

The expected outputs are the oracle's, or those of an honest engine of another design with the same
replaced tensors: one without conversions of activations, say, or without a GELU table.
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

OUTPUTS = ("result_output", "result_embd_pooled")  # what a graph is run for
Rows = NDArray[Any]  # (outputs, vocabulary or width), of all batches


@dataclass(frozen=True, kw_only=True, eq=False)
class Patched:
    """The subject's run with the oracle's tensors put in at the guilty sites only."""

    sites: int
    before: float  # the worst logit of its own run, relative to the largest
    worst: float  # of the patched run
    bound: Bound
    allowed: float  # relative to the largest as well
    differed: bool  # before: if not, agreement afterwards confirms nothing
    agrees: bool
    what: str = "logit"
    otherwise: bool = False  # held against honest runs of another design than the oracle's
    at_the_end: bool = False  # the outputs are put in themselves: of the rest they say nothing

    @property
    def explains(self) -> bool:
        """Return True if nine tenths of a difference are gone, which honest noise cannot
        explain."""
        return self.before > 0 and self.worst <= self.before / 10

    @property
    def confirms(self) -> bool:
        return self.agrees and (self.differed or self.explains)


def patch(context: Context, found: Findings) -> Patched:
    """Replace the guilty ops' results: if they are all faults, the outputs must agree.

    The oracle's values differ more from an honest engine that converts no activations than many
    faults do. Values of a run of its own design do not.
    """
    values = replaceable(context, found.values)
    context.progress(f"putting the oracle's tensor in at {len(values)} sites")
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
    """Compare two runs of each engine: unchanged, and with the tensors put in."""
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
    """Yield runs of honest engines that make none of ggml's roundings, with values put in. A
    quantised model also has those that convert activations otherwise."""
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
