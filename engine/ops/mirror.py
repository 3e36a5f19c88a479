"""The reference with the roundings that llama.cpp's CPU code makes on purpose, and no others.

What is left between this and llama.cpp is the order of float additions and the last bits of exp.
Follows ggml-cpu of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.activations.base import Converted
from engine.kernels import compiled
from engine.ops.flash_mirror import FlashMirror
from engine.ops.ggml import attention, gated
from engine.ops.ggml.base import Build
from engine.ops.products import convert, product
from engine.ops.reference import F64, I32, Bools, Reference, RopeParams, rounded
from engine.quants.base import F32
from engine.weights import Weight


class Mirror(Reference):
    """`n_threads` and `n_ctx` matter to flash attention only, which cuts its work by them.

    `generic` names the activation formats that the mirrored build rounds as ggml's generic C does.
    """

    def __init__(self, n_threads: int = 1, n_ctx: int = 512, generic: Collection[str] = ()) -> None:
        self.flash = FlashMirror(n_threads=n_threads, n_ctx=n_ctx)
        self.generic = generic

    def converted(self, x: F32, weight: Weight) -> Converted:
        """Activations are converted to the weight type's `vec_dot_type` before the product."""
        return convert(x, weight.format, self.generic)

    def activations(self, x: F32, weight: Weight) -> F64:
        return self.converted(x, weight).values

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        """The block sums that minima are multiplied by, where they are more than sums of values."""
        return self.converted(x, weight).sums if weight.format.vec_dot_type == "Q8_1" else None

    def linear(self, x: F32, weight: Weight) -> F32:
        return product(self.activations(x, weight), self.sums(x, weight), weight)

    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        """ggml multiplies the angle up pair by pair in float32 (ggml_rope_cache_init)."""
        factors = params.factors
        if factors is None:
            factors = np.ones(params.n_rot // 2, np.float32)
        base, scale = np.float32(params.base), np.float32(params.scale)
        kept = np.zeros(len(factors), np.float32) if params.kept is None else params.kept
        cos, sin = rope_cache(positions, params.n_rot, base, scale, factors, kept)
        magnitude = np.float32(params.magnitude)
        return (cos * magnitude).astype(np.float64), (sin * magnitude).astype(np.float64)

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        """A product with F16 keys takes its queries in F16 as well."""
        return super().kq(like(q, k), k)

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        return super().kqv(like(p, v), v)

    def flash_attn(
        self, q: F32, k: NDArray[Any], v: NDArray[Any], scale: float, visible: Bools
    ) -> F32:
        return self.flash.attend(q, k, v, scale, visible).out

    def flash_attn_ext(
        self,
        q: F32,
        k: NDArray[Any],
        v: NDArray[Any],
        scale: float,
        visible: Bools,
        cap: float = 0.0,
        sinks: F32 | None = None,
    ) -> F32:
        unused = self.flash.n_kv(len(k)) - len(k)  # cells that ggml has behind those in use
        k, v = (np.pad(x, ((0, unused), (0, 0), (0, 0))) for x in (k, v))
        node = attention.call(q, k, v, scale, np.pad(visible, ((0, 0), (0, unused))), cap, sinks)
        found = attention.flash_attn_ext(node, Build(lanes=1, n_threads=self.flash.n_threads))
        return rounded(found.value.reshape(len(q), -1))

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        """The factor is a float32 in ggml's op_params."""
        return super().soft_max(x, float(np.float32(scale)), visible)

    def soft_max_with_sinks(self, x: F32, scale: float, visible: Bools, sinks: F32) -> F32:
        return super().soft_max_with_sinks(x, float(np.float32(scale)), visible, sinks)

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, float(np.float32(eps)))

    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        return super().layer_norm(x, weight, bias, float(np.float32(eps)))

    def gelu(self, x: F32) -> F32:
        """Out of ggml's table of halves."""
        return rounded(gated.gelu_table(x.astype(np.float64)).v)

    def geglu(self, gate: F32, up: F32) -> F32:
        return rounded(gated.gelu_table(gate.astype(np.float64)).v * up)

    def sum_experts(self, x: F32) -> F32:
        """One float32 addition after the other, in the order of choice."""
        total = x[:, 0]
        for i in range(1, x.shape[1]):
            total = total + x[:, i]
        return rounded(total.astype(np.float64))


def like(x: F32, stored: NDArray[Any]) -> F32:
    """x as the product with `stored` sees it."""
    if stored.dtype == np.float16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    return x


@compiled
def rope_cache(
    positions: I32, n_rot: int, base: np.float32, scale: np.float32, factors: F32, kept: F32
) -> tuple[F32, F32]:
    """Cosines and sines, (tokens, n_rot / 2) each, through the C library's float32 functions."""
    cos = np.empty((len(positions), n_rot // 2), np.float32)
    sin = np.empty_like(cos)
    step = base ** np.float32(np.float32(-2.0) / np.float32(n_rot))
    for t in range(len(positions)):
        theta = np.float32(positions[t])
        for i in range(n_rot // 2):
            whole = np.float32(theta / factors[i])
            angle = np.float32(scale * whole)
            if kept[i] != 0:
                scaled = np.float32(angle * np.float32(np.float32(1) - kept[i]))
                angle = np.float32(scaled + np.float32(whole * kept[i]))
            cos[t, i] = np.cos(angle)
            sin[t, i] = np.sin(angle)
            theta = np.float32(theta * step)
    return cos, sin
