"""A run as data: its batches, and the reference of its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.records import Request


@dataclass(frozen=True, kw_only=True, eq=False)
class SameRows:
    """Outputs that a run repeats: their rows in each batch of the usual run and of this run."""

    first: Sequence[NDArray[np.intp]]
    own: Sequence[NDArray[np.intp]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A plan of batches. words: how a sentence names it, after "logits". usual: as the usual run,
    with other tokens.

    known: it computes nothing that the usual run does not, so no honest run of its own is needed
    until the engines differ. same: its outputs are compared with the engine's own first answer, not
    the oracle's. besides: a further difference that the description omits.
    """

    words: str
    batches: tuple[Batch, ...]
    usual: bool = False
    known: bool = False
    capture: bool = False
    same: SameRows | None = None
    besides: str = ""

    @property
    def request(self) -> Request:
        return Request(batches=self.batches, capture=self.capture)
