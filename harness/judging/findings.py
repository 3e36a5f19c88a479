"""Findings along a graph: each op judged alone, together with the errors in the subject's own run.

The graph is ours or llama.cpp's, and each finding names the inputs of its op.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Site

Values = dict[Site, NDArray[Any]]
TOKENS = "tokens"  # name of an axis


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """The findings on all ops, in execution order."""

    all: tuple[SiteFinding, ...]
    not_shown: tuple[Site, ...]  # the oracle does not show what the judge computed at these sites
    hidden: tuple[Site, ...]  # the subject says that it does not show these sites
    # the subject shows these sites, but their inputs could not be replaced
    not_given: tuple[Site, ...]
    # difference of the subject's own run from the oracle's, as a share of the largest value
    free: Mapping[Site, float]
    values: Values  # the oracle's values at the guilty sites, and at their inputs
    # reason -> sites that are shown but not judged
    skipped: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    own_inputs: bool = False  # each op is judged on the subject's own inputs, not on the oracle's
    in_halves: str = ""  # F16 or BF16 if all values that the engine shows are such numbers
    embeddings: bool = False  # the outputs are embeddings, because the model has no logits
    # reason -> sites whose right value is unknown
    unknown: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    # number of wrong sites where the subject cannot continue with replaced values
    not_put_in: int = 0
    # the first place at which the graphs of both files differ
    other_graph: str = ""
    batches: tuple[Batch, ...] = ()  # the batches of the run
    # keys of the model that have other values in the subject's file
    other_keys: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        return "embedding" if self.embeddings else "logit"

    @property
    def guilty(self) -> tuple[SiteFinding, ...]:
        return tuple(f for f in self.all if f.mismatch is not None)

    @property
    def not_compared(self) -> tuple[Site, ...]:
        """Return the ops without a judgement. Any of them may be at fault."""
        empty = (f.site for f in self.all if f.mismatch is None and not f.compared)
        unknown = (site for sites in self.unknown.values() for site in sites)
        return (*self.not_shown, *self.hidden, *self.not_given, *unknown, *empty)

    def err_out(self, finding: SiteFinding) -> float:
        return self.free.get(finding.site, float("inf"))

    def err_in(self, finding: SiteFinding) -> float:
        """Return the worst error of the op's inputs, in the subject's own run."""
        known = [self.free[site] for site in finding.inputs if site in self.free]
        return max(known, default=0.0)

    def gain(self, finding: SiteFinding) -> float:
        """Return the ratio of the op's output error to its input error."""
        error_in = self.err_in(finding)
        return self.err_out(finding) / error_in if error_in else float("inf")

    def positions(self, finding: SiteFinding) -> Sequence[int] | None:
        """Return the position of each row along the tensor's token axis; None if there is no such
        axis, or if its rows are not those of the batch."""
        names = finding.axes.strip("()").split(", ")
        if TOKENS not in names or len(names) != len(finding.shape) or not self.batches:
            return None
        batch, n = self.batches[finding.site.step], finding.shape[names.index(TOKENS)]
        if n == len(batch):
            return [int(at) for at in batch.positions]
        asked = batch.positions[batch.outputs]
        return [int(at) for at in asked] if n == len(asked) else None

    @property
    def rest(self) -> str:
        """Describe how many ops are right, and on which inputs."""
        fine = sum(f.mismatch is None and f.compared > 0 for f in self.all)
        what = "segments" if self.own_inputs else "ops"
        text = f"on {self.basis} {fine} of {len(self.all)} {what} agree"
        kind = self.in_halves
        more = (
            f" (the engine shows only {kind} numbers, so errors below half a step of "
            f"{kind} do not show)"
        )
        return text + more * bool(kind)

    @property
    def basis(self) -> str:
        return "its own inputs" if self.own_inputs else "the oracle's inputs"


def errors_between(oracle: Values, subject: Values) -> dict[Site, float]:
    """Return the worst error of each site that both engines show, relative to the site's largest
    value."""
    return {
        site: worst_distance(value, subject[site]) / (largest(value) or 1.0)
        for site, value in oracle.items()
        if site in subject
    }


def by_layer(layers: Sequence[int | None]) -> list[list[int]]:
    """Return groups of sites by index: the sites before the layers, the sites of each layer, and
    all other sites.

    llama.cpp computes parts of one layer between parts of another.
    """
    groups: dict[int | str, list[int]] = {"before": []}
    for at, layer in enumerate(layers):
        outside = "before" if len(groups) == 1 else "after"
        groups.setdefault(outside if layer is None else layer, []).append(at)
    after = groups.pop("after", [])
    return [group for group in (*groups.values(), after) if group]
