"""The ops as they are run: `mirror`'s answers to within float32's roundings, compiled by numba.

Weights are multiplied as they lie in the mapped file; a format without a kernel takes mirror's way.
Flash attention keeps its sums in float32, so with an F16 cache it is nearer to the truth than
llama.cpp is. Never used to judge.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import is_kept
from lockstep.engine.ops.attention import like
from lockstep.engine.ops.fast import kernels
from lockstep.engine.ops.flash_mirror import one_by_one
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import activation_format
from lockstep.engine.ops.reference import I32, Bools, RopeParams
from lockstep.engine.ops.rotation import recursion
from lockstep.engine.quants import f32
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.quants.bf16 import BF16
from lockstep.engine.quants.f16 import F16
from lockstep.engine.quants.q4_0 import Q4_0
from lockstep.engine.quants.q8_0 import Q8_0
from lockstep.engine.weights import Weight

WORTH_A_THREAD = 1 << 19  # multiplications below which waking a thread costs more than it saves

# the blocks with the bits of their scale, as numba has no float16
Q8_0_BLOCK = np.dtype([("d", "<u2"), ("qs", "i1", 32)])
Q4_0_BLOCK = np.dtype([("d", "<u2"), ("qs", "u1", 16)])


class Fast(Mirror):
    """`n_threads`: how many it may use, by default one per core; they change no result."""

    def __init__(self, n_threads: int | None = None) -> None:
        super().__init__()
        self.n_threads = n_threads or os.cpu_count() or 1
        self.pool = ThreadPoolExecutor(self.n_threads)

    def share(self, kernel: Callable[..., None], n: int, work: int, *args: Any) -> None:
        """kernel(*args, start, stop) for 0 to n, in as many pieces as `work` is worth."""
        pieces = max(1, min(self.n_threads, n, work // WORTH_A_THREAD))
        edges = [n * i // pieces for i in range(pieces + 1)]
        others = [self.pool.submit(kernel, *args, edges[i], edges[i + 1]) for i in range(1, pieces)]
        kernel(*args, edges[0], edges[1])
        for other in others:
            other.result()

    # --- products with weights ------------------------------------------------------------

    def linear(self, x: F32, weight: Weight) -> F32:
        prepare = PRODUCTS.get(weight.format)
        if prepare is None:
            return super().linear(x, weight)
        kernel, args = prepare(x, weight)
        out = np.empty((len(x), weight.shape[0]), np.float32)
        self.share(kernel, weight.shape[0], x.size * weight.shape[0], *args, out)
        return out

    # --- row by row -----------------------------------------------------------------------

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        rows = plain(x).reshape(-1, x.shape[-1])  # of each head, where x is cut into heads
        out = np.empty(rows.shape, np.float32)
        self.share(kernels.rms_norm, len(rows), x.size, rows, plain(weight), np.float32(eps), out)
        return out.reshape(x.shape)

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        if params.halves or params.n_rot < x.shape[-1]:
            return super().rope(x, positions, params)
        cos, sin = (plain(t) for t in self.rotations(positions, params))
        out = np.empty(x.shape, np.float32)
        self.share(kernels.rope, len(x), x.size, plain(x), cos, sin, out)
        return out

    def swiglu(self, gate: F32, up: F32) -> F32:
        out = np.empty(gate.shape, np.float32)
        flat = (plain(t).reshape(-1) for t in (gate, up))
        self.share(kernels.swiglu, out.size, out.size, *flat, out.reshape(-1))
        return out

    # --- attention ------------------------------------------------------------------------

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        return self.scores(like(q, k), k)

    def scores(self, q: F32, k: NDArray[Any]) -> F32:
        heads, keys = plain(q.transpose(1, 0, 2)), plain(k.transpose(1, 0, 2))
        out = np.empty((len(heads), len(q), len(k)), np.float32)
        self.share(kernels.kq, len(heads), q.size * len(k), heads, keys, out)
        return out

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        if visible is None:  # a router's few logits
            return super().soft_max(x, scale, None)
        out = np.empty(x.shape, np.float32)
        shown = np.require(visible, np.bool_, ["C", "A", "W"])
        self.share(kernels.soft_max, len(x), 8 * x.size, plain(x), np.float32(scale), shown, out)
        return out

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        return self.weighted(like(p, v), v)

    def weighted(self, p: F32, v: NDArray[Any]) -> F32:
        values = plain(v.transpose(1, 0, 2))
        out = np.empty((p.shape[1], len(p), v.shape[2]), np.float32)
        self.share(kernels.kqv, len(p), p.size * v.shape[2], plain(p), values, out)
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
        if cap or sinks is not None:
            return super().flash_attn(q, k, v, scale, visible, cap, sinks)
        return self.weighted(self.soft_max(self.scores(q, k), scale, visible), v)


def plain(x: NDArray[Any]) -> F32:
    """As the one kind of array for which the kernels are compiled; a copy if it is another."""
    return np.require(x, np.float32, ["C", "A", "W"])


# --- how each format is multiplied ------------------------------------------------------------

Prepared = tuple[Callable[..., None], tuple[Any, ...]]  # a kernel and its first arguments


def stored(weight: Weight, layout: Any) -> NDArray[Any]:
    """The matrix without a copy: (outputs, ...) of the layout, always read-only."""
    # an alignment smaller than a float's is legal in a file, and costs a copy here
    size = np.dtype(layout).itemsize
    view: NDArray[Any] = np.ndarray(
        (weight.shape[0], weight.row_bytes // size), layout, np.ascontiguousarray(weight.raw)
    )
    view = np.require(view, requirements="A").view()
    view.flags.writeable = False
    return view


def rounded(x: F32, weight: Weight) -> F32:
    """The activations as the weight's `vec_dot_type` leaves them."""
    return plain(activation_format(weight.format).convert(x).values)


def quantised(x: F32, weight: Weight) -> tuple[NDArray[np.int8], F32]:
    """(tokens, blocks, 32) integers and (tokens, blocks) scales."""
    blocks = activation_format(weight.format).quantise(x)
    return np.ascontiguousarray(blocks["qs"]), blocks["d"].astype(np.float32)


def floats(x: F32, weight: Weight) -> Prepared:
    return kernels.products, (plain(x), stored(weight, np.float32))


def halves(x: F32, weight: Weight) -> Prepared:
    return kernels.products_16, (rounded(x, weight), stored(weight, np.uint16), False)


def brain_floats(x: F32, weight: Weight) -> Prepared:
    return kernels.products_16, (rounded(x, weight), stored(weight, np.uint16), True)


def blocks_of_8_bits(x: F32, weight: Weight) -> Prepared:
    return kernels.products_q8_0, (*quantised(x, weight), stored(weight, Q8_0_BLOCK))


def blocks_of_4_bits(x: F32, weight: Weight) -> Prepared:
    return kernels.products_q4_0, (*quantised(x, weight), stored(weight, Q4_0_BLOCK))


# by class, not by name: a decoder that is wrong on purpose must not be replaced by a right one
PRODUCTS: dict[type[WeightFormat], Callable[[F32, Weight], Prepared]] = {
    f32.F32: floats,
    F16: halves,
    BF16: brain_floats,
    Q8_0: blocks_of_8_bits,
    Q4_0: blocks_of_4_bits,
}


# --- is it compiled? --------------------------------------------------------------------------


def is_compiled(ops: str, *, flash_attn: bool = False) -> bool:
    """Whether numba's cache has the kernels that every run with these ops needs.

    If not, the first call compiles for some seconds. The products of a weight format that was never
    met before may still be missing.
    """
    needed = {
        "reference": [],
        "mirror": [recursion, one_by_one] if flash_attn else [recursion],
        "fast": [recursion, kernels.rms_norm, kernels.soft_max, kernels.kqv],
    }
    return all(is_kept(kernel) for kernel in needed[ops])
