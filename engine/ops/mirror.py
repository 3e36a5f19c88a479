"""The ops with the deliberate roundings of llama.cpp's CPU code, and no others.

The remaining differences from llama.cpp are the order of float additions and the last bits of exp.
Follows ggml-cpu of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Collection
from typing import Any

from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.flash_mirror import FlashMirror
from lockstep.engine.ops.ggml.attention import as_node
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, Bools, ReferenceOps, RopeParams
from lockstep.engine.ops.rotation import by_recursion
from lockstep.engine.quants.base import F32


class Mirror(ReferenceOps):
    """Ops with llama.cpp's roundings. `n_threads` and `n_ctx` determine how flash attention divides
    its work.

    `generic` names the activation formats that the mirrored build rounds as ggml's generic C does;
    `lanes` affects only bounds.
    """

    bounds = False  # True: ops return a limit of the error
    flash: FlashMirror | None  # rounding of attention; None: it does not round

    def __init__(
        self,
        n_threads: int = 1,
        n_ctx: int = 512,
        generic: Collection[str] = (),
        *,
        lanes: int = 1,
    ) -> None:
        self.flash = FlashMirror(n_threads=n_threads, n_ctx=n_ctx)
        self.build = Build(
            lanes=lanes, n_threads=n_threads, generic=tuple(generic), bounds=self.bounds
        )

    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        return by_recursion(positions, params)

    def flash_attn(
        self,
        q: F32,
        k: NDArray[Any],
        v: NDArray[Any],
        scale: float,
        visible: Bools,
        cap: float = 0.0,
        sinks: F32 | None = None,
    ) -> F32:
        if self.flash is None:
            return super().flash_attn(q, k, v, scale, visible, cap, sinks)
        return self.run(as_node, q, k, v, scale, visible, cap, sinks, self.flash)
