"""Reads matrices column by column, as if they were stored transposed."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.base import Mutant


class ColumnMajor(Mirror):
    def linear(self, x: F32, weight: Weight) -> F32:
        outputs, inputs = weight.shape
        wrong = weight.values().reshape(inputs, outputs).astype(np.float64)
        return (self.activations(x, weight) @ wrong).astype(np.float32)


class ColumnMajorWeights(Mutant, name="mutant:column-major"):
    ops = ColumnMajor
    mistake = "weights read column-major"
    group = "products"
    effect = "noise from the first token on"
    first_of_all = True
    site = "Qcur"
