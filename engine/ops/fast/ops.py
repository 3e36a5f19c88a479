"""The ops of the running engine, compiled by numba: equal to `mirror` up to float32 roundings.

Products read weights directly from the mapped file. Only a decoder that is wrong on purpose uses
mirror's code, because such a decoder may do anything. Flash attention keeps its sums in float32, so
with an F16 cache it is more precise than llama.cpp's. This module is never used to judge.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.integer_rows import BLOCKS, TOGETHER, rows
from lockstep.engine.kernels.pointers import address_of
from lockstep.engine.kernels.raw_bytes import readable
from lockstep.engine.ops.attention import like
from lockstep.engine.ops.coded import decode, is_coded
from lockstep.engine.ops.fast import floats, kernels, panels
from lockstep.engine.ops.fast.activations import CONVERTED, ActivationSteps
from lockstep.engine.ops.fast.team import team
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import activation_format, minimum_of, run_of
from lockstep.engine.ops.reference import I32, Bools, RopeParams
from lockstep.engine.quants.base import F32, NO_PRODUCT, WeightFormat
from lockstep.engine.weights import Weight

WORTH_A_THREAD = 1 << 17  # number of multiplications from which threads are worth their cost
FEW = 8  # number of tokens up to which weights are multiplied in the layout of the file
NONE = (np.frombuffer(b"", np.uint8),) * TOGETHER  # stands for further matrices if there are fewer
SINGLE, HALF_BITS, BOOL = np.dtype(np.float32), np.dtype(np.uint16), np.dtype(np.bool_)
Prepared = tuple[Callable[..., None], tuple[Any, ...]]  # a kernel with its first arguments


class Fast(Mirror):
    """Ops that run fast. `n_threads`: the maximum number of threads, by default one per core.
    Results do not depend on the number of threads.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        super().__init__()
        self.n_threads = n_threads or os.cpu_count() or 1
        self.converted_last: tuple[Any, ActivationSteps] | None = None
        # by weight: activations, and results that were computed in advance
        self.computed: dict[Weight, tuple[F32, F32]] = {}
        self.turned: tuple[bytes, RopeParams, F32, F32] | None = None

    def share(self, kernel: Callable[..., None], n: int, work: int, *args: Any) -> None:
        """Call kernel(*args, start, stop) on parts of 0 to n, with as many threads as `work`
        justifies."""
        helpers = min(self.n_threads - 1, work // WORTH_A_THREAD)
        if helpers < 1:
            kernel(*args, 0, n)
        else:
            team().share(kernel, args, n, helpers)

    # --- products with weights ------------------------------------------------------------

    def linear(self, x: F32, weight: Weight) -> F32:
        known = self.computed.pop(weight, None)
        if known is not None and known[0] is x:
            return known[1]
        kind = weight.format
        # the fast kernels must not replace a decoder that is wrong on purpose
        if kind.family.get(kind.name) is not kind or kind.vec_dot_type == NO_PRODUCT:
            return super().linear(x, weight)
        if self.is_for_rows(x, kind):
            return self.by_rows(x, [weight])[0]
        out = np.empty((len(x), weight.shape[0]), np.float32)
        if kind.vec_dot_type in CONVERTED:
            kernel, args = of_steps(self.steps(x, kind), weight)
        else:
            kernel, args = of_floats(x, weight)
        self.share(kernel, weight.shape[0], x.size * weight.shape[0], *args, out)
        return out

    def compute_together(self, x: F32, weights: Sequence[Weight]) -> None:
        kind = weights[0].format
        if any(w.format is not kind for w in weights) or kind.family.get(kind.name) is not kind:
            return
        if len(weights) <= TOGETHER and self.is_for_rows(x, kind):
            products = self.by_rows(x, weights)
            self.computed = {w: (x, out) for w, out in zip(weights, products, strict=True)}

    def is_for_rows(self, x: F32, kind: type[WeightFormat]) -> bool:
        return kind.name in BLOCKS and len(x) <= FEW and self.steps(x, kind).have_opposites

    def by_rows(self, x: F32, weights: Sequence[Weight]) -> list[F32]:
        """Multiply by several weights of one format in one call, because a call starts threads,
        which takes as long as a small product.
        """
        kind = weights[0].format
        found = self.steps(x, kind)
        n = sum([weight.shape[0] for weight in weights])
        out, parts, start = np.empty((len(x), n), np.float32), [], 0
        for weight in weights:
            parts.append(out[:, start : start + weight.shape[0]])
            start += weight.shape[0]
        raws = (*[readable(weight.raw) for weight in weights], *NONE[len(weights) :])
        sums = found.pairs if BLOCKS[kind.name].pairs else found.sums
        args = raws, weights[0].row_bytes, found.x, found.dx, sums, found.lows, out
        self.share(rows(kind.name, "float32"), n, x.size * n, *args)
        return parts

    def steps(self, x: F32, kind: type[WeightFormat]) -> ActivationSteps:
        """Convert activations for a weight type; the next product often reuses the result."""
        key = kind.vec_dot_type, x.shape, x.tobytes()
        if self.converted_last is None or self.converted_last[0] != key:
            self.converted_last = key, CONVERTED[kind.vec_dot_type](plain(x))
        return self.converted_last[1]

    # --- row by row -----------------------------------------------------------------------

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        rows = plain(x).reshape(-1, x.shape[-1])  # a row for each head if x is split into heads
        out = np.empty(rows.shape, np.float32)
        self.share(kernels.rms_norm, len(rows), x.size, rows, plain(weight), np.float32(eps), out)
        return out.reshape(x.shape)

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        cos, sin = self.turns(positions, params)
        out = np.empty(x.shape, np.float32)
        args = plain(x), cos, sin, params.halves
        self.share(kernels.rope, len(x), x.size, *args, out)
        return out

    def turns(self, positions: I32, params: RopeParams) -> tuple[F32, F32]:
        """Return cosines and sines, cached for the last positions, because all layers of a batch
        use the same.
        """
        at, last = positions.tobytes(), self.turned
        if last is None or last[0] != at or not last[1].turns_as(params):
            cos, sin = (plain(t) for t in self.rotations(positions, params))
            last = self.turned = at, params, cos, sin
        return last[2:]

    def swiglu(self, gate: F32, up: F32) -> F32:
        out = np.empty(gate.shape, np.float32)
        flat = (plain(t).reshape(-1) for t in (gate, up))
        self.share(kernels.swiglu, out.size, out.size, *flat, out.reshape(-1))
        return out

    # --- attention ------------------------------------------------------------------------

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        q, k = like(q, k), decode(k)
        out = np.empty((q.shape[1], len(q), len(k)), np.float32)
        self.share(kernels.kq, len(out), q.size * len(k), plain(q), as_cached(k), out)
        return out

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        if visible is None:  # the softmax of a router has few logits
            return super().soft_max(x, scale, None)
        out = np.empty(x.shape, np.float32)
        args = plain(x), np.float32(scale), visible_cells(visible)
        self.share(kernels.soft_max, len(x), 8 * x.size, *args, out)
        return out

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        p, v = like(p, v), decode(v)
        out = np.empty((p.shape[1], len(p), v.shape[2]), np.float32)
        self.share(kernels.kqv, len(p), p.size * v.shape[2], plain(p), as_cached(v), out)
        return out.reshape(len(out), len(p) * v.shape[2])

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
        if cap or sinks is not None or is_coded(k) or is_coded(v):
            return super().flash_attn(q, k, v, scale, visible, cap, sinks)
        tokens, heads = q.shape[:2]
        room = np.empty((2, heads, tokens, len(k)), np.float32)
        out = np.empty((tokens, heads, v.shape[2]), np.float32)
        args = plain(q), as_cached(k), as_cached(v), np.float32(scale), visible_cells(visible), room
        work = 2 * q.size * len(k)
        self.share(kernels.attend, heads, work, *args, out)
        return out.reshape(tokens, heads * v.shape[2])


def plain(x: NDArray[Any]) -> F32:
    return as_compiled(x, SINGLE)


def as_cached(x: NDArray[Any]) -> NDArray[Any]:
    """Return keys or values as the cache stores them: halves as their bits."""
    if x.dtype == np.float16:
        return as_compiled(x.view(HALF_BITS), HALF_BITS)
    return plain(x)


def visible_cells(visible: Bools) -> Bools:
    return as_compiled(visible, BOOL)


def as_compiled(x: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return x as an array of the kind that the kernels are compiled for; copies if needed."""
    if x.dtype == kind and x.flags.carray:
        return x
    return np.require(x, kind, ["C", "A", "W"])


# --- products of each format ------------------------------------------------------------------


def of_steps(found: ActivationSteps, weight: Weight) -> Prepared:
    """Arrange the steps in panels for a matrix."""
    kind, raw = weight.format, readable(weight.raw)
    x, dx = found.tiles
    if run_of(kind) < activation_format(kind).block:
        # NVFP4 has two scales of weights for each scale of activations
        dx = np.repeat(dx, 2, axis=1)
    y, dy = found.tiles_of_minima if minimum_of(kind) else (x[:, :0], dx[:, :0])
    return panels.products, (*panels.format_of(kind.name), raw, weight.row_bytes, x, dx, y, dy)


def of_floats(x: F32, weight: Weight) -> Prepared:
    """Prepare a product of float weights. Activations are rounded to the weight's
    `vec_dot_type`."""
    rounded = plain(activation_format(weight.format).convert(x).values)
    unpack = address_of(weight.format.unpack, *floats.KINDS)
    return floats.products, (unpack, readable(weight.raw), weight.row_bytes, rounded)
