"""Builds a wrong engine from the right one, by replacing ops, numbers or weights."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32, Bytes, WeightFormat
from lockstep.harness.mutants.parts.mistakes import Mistake

Blocks = NDArray[Any]  # (n,) blocks of a format's layout


class WrongFormat(Mistake):
    """A wrong reading of one format. `before` changes the bytes, and `after` changes the decoded
    weights."""

    group = "formats"
    kind: ClassVar[str]
    site = "embd"
    layer = None

    @staticmethod
    def before(blocks: Blocks) -> None:
        """Change the blocks, a copy in the format's layout."""

    @staticmethod
    def after(blocks: Blocks, out: F32) -> None:
        """Change the decoded weights `out`: (blocks, weights per block)."""

    @classmethod
    def wrong(cls) -> type[WeightFormat]:
        right = WeightFormat.member(cls.kind)

        def unpack(raw: Bytes, out: F32) -> None:
            blocks = raw.copy().view(right.layout)
            cls.before(blocks)
            right.unpack(blocks.view(np.uint8), out)
            with np.errstate(all="ignore"):
                cls.after(blocks, out.reshape(-1, right.weights))

        return type("Wrong", (right,), {"unpack": staticmethod(unpack)})

    def change(self, model: Model) -> None:
        formats = model.graph.tensors.weights.formats
        wrong = self.wrong()
        for name, kind in formats.items():
            if kind.name == self.kind:
                formats[name] = wrong

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        if type_name == self.kind:
            return self.wrong().dequantize(raw)
        return super().dequantize(type_name, raw)
