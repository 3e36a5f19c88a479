"""`lockstep bisect`: the first layer that diverges, the guilty ops in it, and the proof."""

from dataclasses import dataclass

from harness.judge import SiteFinding
from harness.locate import Findings, Patched, locate, patch
from harness.suites.base import Context

Place = tuple[int | None, str]  # layer and site


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """One layer (or what comes before or after the layers) in the subject's own run."""

    layer: int | None
    last: str  # the last site of it, in execution order
    error: float  # of that site, relative to the largest value: what the layer passes on
    guilty: tuple[str, ...]  # sites of it at which an op is wrong by itself


@dataclass(frozen=True, kw_only=True, eq=False)
class Bisection:
    found: Findings
    layers: tuple[Layer, ...]
    culprits: tuple[SiteFinding, ...]  # one for each place, from the first step that shows it
    patched: Patched | None  # None: there is nothing to put right

    @property
    def first(self) -> SiteFinding | None:
        return self.culprits[0] if self.culprits else None


def bisect(context: Context) -> Bisection:
    found = locate(context)
    culprits: dict[Place, SiteFinding] = {}
    for finding in found.guilty:
        culprits.setdefault((finding.site.layer, finding.site.name), finding)
    return Bisection(
        found=found,
        layers=layers_of(found),
        culprits=tuple(culprits.values()),
        patched=patch(context, found) if culprits else None,
    )


def layers_of(found: Findings) -> tuple[Layer, ...]:
    """In the order of the graph, from the prompt's run (step 0)."""
    groups: list[list[SiteFinding]] = []
    for finding in (f for f in found.all if f.site.step == 0):
        if not groups or groups[-1][0].site.layer != finding.site.layer:
            groups.append([])
        groups[-1].append(finding)
    return tuple(
        Layer(
            layer=group[0].site.layer,
            last=group[-1].site.name,
            error=found.err_out(group[-1]),
            guilty=tuple(f.site.name for f in group if f.mismatch is not None),
        )
        for group in groups
    )
