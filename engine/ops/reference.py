"""The ops that architectures call: float32 in, this package's formulas, float32 out.

Numerics as written on paper: float64 inside, one rounding to float32 on the way out. Shapes are
numpy's, slowest first. A weight matrix is (outputs, inputs), as it lies in a GGUF file.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import Converted
from lockstep.engine.ops import attention, experts, gates, norms, products, rotation, softmax
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.coded import decode
from lockstep.engine.ops.near import F64, Near, Number
from lockstep.engine.ops.rotation import I32 as I32
from lockstep.engine.ops.rotation import RopeParams as RopeParams
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight

Bools = NDArray[np.bool_]
Formula = Callable[..., Number | F32]  # the last argument is the build


class ReferenceOps:
    """The definition of every op."""

    build = Build(lanes=1, plain=True, bounds=False)
    last: tuple[tuple[str, bool], NDArray[Any], Converted] | None = None
    last_turned: tuple[I32, RopeParams, tuple[F64, F64]] | None = None

    def run(self, formula: Formula, *args: Any) -> F32:
        """Return the result of the formula for this build, rounded once."""
        with np.errstate(all="ignore"):
            found = formula(*args, self.build)
            value = found.v if isinstance(found, Near) else found
            return value.astype(np.float32, copy=False)

    # --- embeddings and norms -------------------------------------------------------------

    def get_rows(self, weight: Weight, ids: I32) -> F32:
        """Look up the rows of these ids -> (ids, columns)."""
        return weight.take(ids)

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        """Scale each row to unit mean square, then multiply by the weight. x: (tokens, width)."""
        return self.run(norms.rms_norm, x, weight, eps)

    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        """Give each row mean zero and variance one, then apply weight and bias. x: (tokens,
        width)."""
        return self.run(norms.layer_norm, x, weight, bias, eps)

    # --- products with weights ------------------------------------------------------------

    def activations(self, x: F32, weight: Weight) -> F64:
        """Return the activations as the product reads them."""
        return self.convert_once(x, weight).values

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        """Return the block sums that multiply minima, or None if they equal the sums of the
        values."""
        if not products.carries_sums(weight.format):
            return None
        return self.convert_once(x, weight).sums

    def convert_once(self, x: F32, weight: Weight) -> Converted:
        """Convert activations for a weight; the next product often reuses the result."""
        kind = weight.format.vec_dot_type, products.is_for_amx(weight, self.build)
        if self.last is not None and self.last[0] == kind and np.array_equal(self.last[1], x):
            return self.last[2]
        found = products.convert_activations(x, weight, self.build)
        if self.build.tip is None:  # with a tip, the result changes each time
            found.values.flags.writeable = False
            self.last = kind, np.array(x), found
        return found

    def linear(self, x: F32, weight: Weight) -> F32:
        """Apply a linear layer. x: (tokens, inputs), weight: (outputs, inputs) -> (tokens,
        outputs)."""
        return self.run(products.linear, x, weight, self.activations, self.sums)

    def compute_together(self, x: F32, weights: Sequence[Weight]) -> None:
        """Announce calls of `linear` with x and all of these weights; an engine may compute them at
        once."""

    def linear_id(self, x: F32, weight: Weight, ids: I32) -> F32:
        """Multiply each row by the matrix of its expert. x: (tokens, used or 1, inputs), weight:
        (experts, outputs, inputs), ids: (tokens, used) -> (tokens, used, outputs)."""
        out = np.empty((*ids.shape, weight.shape[1]), np.float32)
        rows = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
        for expert in np.unique(ids):
            chosen = ids == expert
            out[chosen] = self.linear(rows[chosen], weight.part(int(expert)))
        return out

    # --- positions ------------------------------------------------------------------------

    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        """Return cosine and sine of every pair's angle: (tokens, n_rot / 2) each."""
        return rotation.from_powers(positions, params)

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        """Rotate pairs of each head; x: (tokens, heads, dim). The first `n_rot` elements are
        rotated in pairs: (0, 1), (2, 3), ..., or (0, n_rot / 2), (1, n_rot / 2 + 1), ...
        """
        return self.run(rotation.rope, x, positions, params, self.kept_rotations)

    def kept_rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        """Return the rotations, cached for the last positions, because all layers use the same
        rotations.
        """
        last = self.last_turned
        if last is not None and last[1].turns_as(params) and np.array_equal(last[0], positions):
            return last[2]
        found = self.rotations(positions, params)
        self.last_turned = np.array(positions), params, found
        return found

    # --- attention ------------------------------------------------------------------------

    def spread(self, kv: NDArray[Any], n_head: int) -> F64:
        """Repeat KV heads for the query heads that share them: (cells, kv_heads, dim) -> (heads,
        cells, dim).
        """
        wide = decode(kv).astype(np.float64).transpose(1, 0, 2)
        return np.repeat(wide, n_head // kv.shape[1], axis=0)

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        """Return the scores. q: (tokens, heads, dim), k: (cells, kv_heads, dim) -> (heads, tokens,
        cells)."""
        return self.run(attention.kq, q, k, self.spread)

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        """Return the softmax over the last axis of x * scale, without hidden entries. `visible` has
        no axis of heads. A row without visible cells is all zeros.
        """
        return self.run(softmax.soft_max, x, scale, visible)

    def soft_max_with_sinks(self, x: F32, scale: float, visible: Bools, sinks: F32) -> F32:
        """Compute the softmax with a sink (heads,) as one more entry in each row, then drop it."""
        return self.run(softmax.soft_max_with_sinks, x, scale, visible, sinks)

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        """Return the weighted sums of the values. p: (heads, tokens, cells), v: (cells, kv_heads,
        dim) -> (tokens, heads * dim)."""
        return self.run(attention.kqv, p, v, self.spread)

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
        """Return attention as one op, without roundings between its parts -> (tokens, heads * dim
        of v).

        Scores may be capped, and each head may have a sink.
        """
        return self.run(attention.flash_attn, q, k, v, scale, visible, cap, sinks, self.spread)

    # --- element by element ---------------------------------------------------------------

    def add(self, a: F32, b: F32) -> F32:
        return a + b  # a single rounding, with float32 or float64 arithmetic

    def mul(self, a: F32, b: F32) -> F32:
        return a * b

    def scale(self, x: F32, factor: float) -> F32:
        return x * np.float32(factor)

    def swiglu(self, gate: F32, up: F32) -> F32:
        """Return silu(gate) * up."""
        return self.run(gates.swiglu, gate, up)

    def swiglu_oai(self, gate: F32, up: F32) -> F32:
        """Return gate * sigmoid(1.702 * gate) * (up + 1), both clamped at 7."""
        return self.run(gates.swiglu_oai, gate, up)

    def gelu(self, x: F32) -> F32:
        """Compute GELU by the formula with tanh, as ggml does."""
        return self.run(gates.gelu, x)

    def geglu(self, gate: F32, up: F32) -> F32:
        """Return gelu(gate) * up."""
        return self.run(gates.geglu, gate, up)

    def sigmoid(self, x: F32) -> F32:
        return self.run(gates.sigmoid, x)

    def soft_cap(self, x: F32, cap: float) -> F32:
        """Return tanh(x / cap) * cap, which never exceeds cap."""
        return self.run(gates.soft_cap, x, cap)

    def mean(self, x: F32) -> F32:
        """Return the mean over tokens: (tokens, width) -> (width,)."""
        return self.run(norms.mean, x)

    # --- mixture of experts ---------------------------------------------------------------

    def top_k(self, probs: F32, n: int) -> I32:
        """Return the ids of the `n` largest numbers of each row, the largest first; the lowest id
        wins a tie.
        """
        return np.argsort(-probs, axis=-1, kind="stable")[..., :n].astype(np.int32)

    def pick(self, probs: F32, ids: I32) -> F32:
        """Pick the probabilities of the experts used. probs: (tokens, experts), ids: (tokens, used)
        -> (tokens, used)"""
        return np.take_along_axis(probs, ids.astype(np.int64), axis=-1)

    def normalise(self, weights: F32) -> F32:
        """Divide each row by its sum."""
        return self.run(experts.normalise, weights)

    def sum_experts(self, x: F32) -> F32:
        """Sum over experts: (tokens, used, width) -> (tokens, width)."""
        return self.run(experts.sum_experts, x)


def round_once(wide: F64 | F32) -> F32:
    """Round to float32."""
    with np.errstate(over="ignore"):
        return wide.astype(np.float32, copy=False)
