"""The true places of a fault, found from tensors. Each node is computed on the inputs of an honest
run.

A right node has exactly the same bits, because both engines share its code. All other nodes are
wrong. The findings of the black box, which sees no tensors, are compared with these places.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.asking.session import Session
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.records import Answered, Request, Site

SEEN = 1e-6  # share of a node's largest value; smaller differences are rounding errors


@dataclass(frozen=True, kw_only=True)
class WrongPlace:
    """A wrong place. `layer` is None outside the layers."""

    layer: int | None
    node: str


def wrong_places(
    honest: Session, engine: Session, batches: Sequence[Batch]
) -> tuple[WrongPlace, ...]:
    """Return the wrong places in the order of computation; an empty tuple if the engine does not
    answer."""
    right = values_of(honest, Request(batches=tuple(batches), capture=True))
    floats = {site: v for site, v in right.items() if v.dtype.kind == "f"}
    put_in = Request(batches=tuple(batches), capture=True, replace=floats)
    shown = values_of(engine, put_in)
    if not shown:
        return ()
    return tuple(dict.fromkeys(differing(floats, shown)))


def nodes_of(honest: Session, batches: Sequence[Batch]) -> frozenset[str]:
    """Return the names of all nodes of the model."""
    shown = values_of(honest, Request(batches=tuple(batches), capture=True))
    return frozenset(site.name for site in shown)


def values_of(session: Session, request: Request) -> dict[Site, NDArray[Any]]:
    outcome = session.ask("evaluate", request)
    if not isinstance(outcome, Answered):
        return {}
    found: dict[Site, NDArray[Any]] = outcome.value.trace.values()
    return found


def differing(
    right: dict[Site, NDArray[Any]], shown: dict[Site, NDArray[Any]]
) -> Iterator[WrongPlace]:
    """Yield the wrong places. If nodes are missing, yield only the missing nodes, because the nodes
    after them cannot be judged."""
    missing = [site for site in right if site not in shown]
    off = (site for site, value in right.items() if is_off(value, shown.get(site)))
    for site in missing or off:
        yield WrongPlace(layer=site.layer, node=site.name)


def is_off(value: NDArray[Any], got: NDArray[Any] | None) -> bool:
    if got is None or got.shape != value.shape:
        return True
    if np.array_equal(value, got, equal_nan=True):
        return False
    finite = np.isfinite(value) & np.isfinite(got)
    if not np.array_equal(np.isfinite(value), np.isfinite(got)):
        return True
    return worst_distance(value[finite], got[finite]) > SEEN * largest(value[finite])
