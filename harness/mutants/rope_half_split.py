"""Rotates elements i and i + n/2 (neox) where llama rotates adjacent ones."""

import numpy as np

from engine.ops.mirror import Mirror
from engine.ops.reference import I32, RopeParams
from engine.quants.base import F32
from harness.mutants.base import Mutant


class HalfSplit(Mirror):
    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        cos, sin = (t[:, None, :] for t in self.rotations(positions, params))
        first, second = np.split(x.astype(np.float64), 2, axis=-1)
        out = np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
        return out.astype(np.float32)


class RopeHalfSplit(Mutant, name="mutant:rope-half-split"):
    ops = HalfSplit
    mistake = "rope on half-split pairs"
    site = "Qcur_rope"
