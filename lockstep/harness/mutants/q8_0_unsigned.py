"""Reads the bytes of Q8_0 as unsigned."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32, Bytes
from lockstep.engine.quants.q8_0 import Q8_0
from lockstep.harness.mutants.base import Mutant


class Unsigned(Q8_0):
    """Not registered: it exists for this mutant only."""

    @staticmethod
    def unpack(raw: Bytes, out: F32) -> None:
        blocks = raw.view(Q8_0.layout)
        q = blocks["qs"].view(np.uint8).astype(np.float32)
        with np.errstate(invalid="ignore"):  # an infinite scale times 0
            out[:] = (blocks["d"].astype(np.float32)[:, None] * q).reshape(-1)


class Q8Unsigned(Mutant, name="mutant:q8-0-unsigned"):
    mistake = "Q8_0 bytes read as unsigned"
    group = "formats"
    effect = "noise: negative weights are large and positive"
    first_of_all = True
    shows_on = "q8_0"
    site = "embd"
    layer = None

    def make_model(self) -> Model:
        model = super().make_model()
        formats: dict[str, Any] = model.graph.tensors.weights.formats
        for name, kind in formats.items():
            if kind is Q8_0:
                formats[name] = Unsigned
        return model

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        if type_name == "Q8_0":
            return Unsigned.dequantize(raw)
        return super().dequantize(type_name, raw)
