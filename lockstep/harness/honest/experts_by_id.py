"""Takes the chosen experts by their id, and shows all that belongs to them in that order."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine


class ById(Mirror):
    def top_k(self, probs: F32, n: int) -> I32:
        return np.sort(super().top_k(probs, n), axis=-1)


class ExpertsById(HonestEngine, name="honest:experts-by-id"):
    """Engines that go through the experts and not through the choices, as Mixtral's in Hugging Face
    transformers."""

    ops = ById
    design = "experts in the order of their ids"
    shows_on = "moe-q8_0"
