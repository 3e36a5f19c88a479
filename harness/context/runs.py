"""A run as data: its batches, and the reference for its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.records import Request


@dataclass(frozen=True, kw_only=True, eq=False)
class SameRows:
    """Outputs of the usual run that a run repeats, as the indices of their rows in each batch of
    the usual run (`first`) and of this run (`own`)."""

    first: Sequence[NDArray[np.intp]]
    own: Sequence[NDArray[np.intp]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A plan of batches.

    words: text that describes the run after the word "logits" in a sentence. usual: True for a run
    like the usual one, with other tokens.

    known: True if the run computes nothing new compared with the usual run, so it needs its own
    honest run only if the engines differ. same: the rows that must equal the engine's own first
    answer; without `same`, the oracle's rows are the reference. besides: a further difference,
    which `words` does not mention.
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
