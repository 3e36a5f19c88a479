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
from lockstep.engine.kernels.pointers import address_of
from lockstep.engine.ops.attention import like
from lockstep.engine.ops.fast import floats, kernels, panels
from lockstep.engine.ops.fast.activations import CONVERTED, Steps
from lockstep.engine.ops.fast.rows import ROWS
from lockstep.engine.ops.flash_mirror import one_by_one
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import activation_format, minimum_of, run_of
from lockstep.engine.ops.reference import I32, Bools, RopeParams
from lockstep.engine.ops.rotation import recursion
from lockstep.engine.quants.base import F32, NO_PRODUCT, Bytes, WeightFormat
from lockstep.engine.weights import Weight

WORTH_A_THREAD = 1 << 19  # multiplications below which waking a thread costs more than it saves

FEW = 8  # tokens, of which each is multiplied by weights as they lie in the file
Prepared = tuple[Callable[..., None], tuple[Any, ...]]  # a kernel and its first arguments


class Fast(Mirror):
    """`n_threads`: how many it may use, by default one per core; they change no result."""

    keeps_pages = True

    def __init__(self, n_threads: int | None = None) -> None:
        super().__init__()
        self.n_threads = n_threads or os.cpu_count() or 1
        self.pool = ThreadPoolExecutor(self.n_threads)
        self.kept: tuple[str, F32, Steps] | None = None

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
        kind = weight.format
        # a decoder that is wrong on purpose must not be replaced by a right one
        if kind.family.get(kind.name) is not kind or kind.vec_dot_type == NO_PRODUCT:
            return super().linear(x, weight)
        out = np.empty((len(x), weight.shape[0]), np.float32)
        if kind.vec_dot_type in CONVERTED:
            kernel, args = self.of_steps(self.steps(x, kind), weight)
        else:
            kernel, args = of_floats(x, weight)
        self.share(kernel, weight.shape[0], x.size * weight.shape[0], *args, out)
        return out

    def of_steps(self, found: Steps, weight: Weight) -> Prepared:
        kind, raw = weight.format, readable(weight.raw)
        row = ROWS.get(kind.name)
        if row is not None and len(found.x) <= FEW:
            sums = found.pairs_of_sums if row.pairs else found.sums
            return row.kernel, (raw, weight.row_bytes, found.x, found.dx, sums, found.lows)
        x, dx = found.tiles
        if run_of(kind) < activation_format(kind).block:
            dx = np.repeat(dx, 2, axis=1)  # NVFP4: two scales of weights for one of activations
        y, dy = found.tiles_of_minima if minimum_of(kind) else (x[:, :0], dx[:, :0])
        return panels.products, (*panels.format_of(kind), raw, weight.row_bytes, x, dx, y, dy)

    def steps(self, x: F32, kind: type[WeightFormat]) -> Steps:
        """Kept until other activations come: those of a layer meet up to three matrices."""
        name = kind.vec_dot_type
        if self.kept is None or self.kept[0] != name or not np.array_equal(self.kept[1], x):
            self.kept = name, np.array(x), CONVERTED[name](plain(x))
        return self.kept[2]

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


def readable(raw: Bytes) -> Bytes:
    """The same bytes, as the one kind of array for which the kernels are compiled."""
    view = np.ascontiguousarray(raw).view()
    view.flags.writeable = False
    return view


def of_floats(x: F32, weight: Weight) -> Prepared:
    """Activations are rounded as the weight's `vec_dot_type` has them."""
    rounded = plain(activation_format(weight.format).convert(x).values)
    unpack = address_of(weight.format.unpack, *floats.KINDS)
    return floats.products, (unpack, readable(weight.raw), weight.row_bytes, rounded)


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
