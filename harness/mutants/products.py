"""Mistakes in products with weights: missing terms, sums, biases."""

from typing import Any

import numpy as np

from lockstep.engine.ops.near import F64
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

NOISE = "noise from the first token on"
WORSE = "text is worse"
LITTLE = "text is a little worse"


class WrongProduct(Mistake):
    group = "products"
    site = "Qcur"


def without_columns(x: F32, lost: slice | int) -> F32:
    """Return the activations with these columns set to zero."""
    found = x.copy()
    found[..., lost] = 0
    return found


WrongProduct.add_fault(
    "tail-dropped",
    "a loop unrolled by 64 drops the remainder of a row",
    "noise in models whose widths are not multiples of 64",
    site="ffn_out",
    linear=lambda self, right, x, w: right(
        without_columns(x, slice(x.shape[-1] // 64 * 64, None)), w
    ),
)
WrongProduct.add_fault(
    "last-block-dropped",
    "the last block of each row is left out",
    WORSE,
    shows_on="q8_0",
    linear=lambda self, right, x, w: right(without_columns(x, slice(-32, None)), w),
)
WrongProduct.add_fault(
    "last-column-dropped",
    "the last column of each matrix is left out",
    LITTLE,
    linear=lambda self, right, x, w: right(without_columns(x, -1), w),
)
WrongProduct.add_fault(
    "lane-dropped",
    "one of eight partial sums is not added",
    NOISE,
    shows_on="arch:llama:F16",
    linear=lambda self, right, x, w: right(without_columns(x, slice(7, None, 8)), w),
)


class LastRowDropped(WrongProduct, name="mutant:last-row-dropped"):
    mistake = "the last row of each matrix is not multiplied"
    effect = "one number of each result stays zero"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        out[..., -1] = 0
        return out


class FromFactors(WrongProduct):
    """A wrong product. `product` gets the converted activations (tokens, k) and the weights (rows,
    k)."""

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        rows = weight.values().reshape(-1, weight.shape[-1]).astype(np.float64)
        ops: Any = self.loaded.ops
        return self.product(ops.activations(x, weight).astype(np.float64), rows)

    def product(self, acts: F64, rows: F64) -> F32:
        raise NotImplementedError


class SquareTransposed(FromFactors, name="mutant:square-transposed"):
    mistake = "square matrices are transposed, which no check of shapes sees"
    effect = NOISE

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        is_square = weight.shape[0] == weight.shape[1]
        return super().linear(right, x, weight) if is_square else right(x, weight)

    def product(self, acts: F64, rows: F64) -> F32:
        return (acts @ rows).astype(np.float32)


class SumsInHalf(FromFactors, name="mutant:sums-in-half"):
    """A product whose running sum is rounded to half precision after every sixteen terms."""

    mistake = "products are added up in half precision"
    effect = "text is a little worse; infinite for large activations"
    shows_on = "arch:llama:F16"

    def product(self, acts: F64, rows: F64) -> F32:
        sums = np.zeros((len(acts), len(rows)), np.float16)
        for start in range(0, acts.shape[1], 16):
            some = slice(start, start + 16)
            sums = (sums + acts[:, some] @ rows[:, some].T).astype(np.float16)
        return sums.astype(np.float32)


class BlockSumsInHalf(FromFactors, name="mutant:block-sums-in-half"):
    mistake = "the sum of each block is rounded to half precision"
    effect = "text is a little worse; NaN for large activations"
    source = "ik_llama.cpp #540"
    shows_on = "q4_0"

    def product(self, acts: F64, rows: F64) -> F32:
        n = acts.shape[1] // 32
        cut = acts.reshape(len(acts), n, 32), rows.reshape(len(rows), n, 32)
        blocks = np.einsum("tbk,rbk->trb", *cut).astype(np.float16)
        found: F32 = blocks.astype(np.float64).sum(axis=-1).astype(np.float32)
        return found


class ColumnMajorWeights(FromFactors, name="mutant:column-major"):
    mistake = "weights are read column-major"
    effect = NOISE
    first_of_all = True

    def product(self, acts: F64, rows: F64) -> F32:
        return (acts @ rows.reshape(rows.shape[::-1])).astype(np.float32)


def tf32(x: F32) -> F64:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32) + np.uint32(0x1000)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


WrongProduct.add_fault(
    "products-in-tf32",
    "factors are rounded to TF32, which nobody asked for",
    "no effect that a reader sees",
    linear=lambda self, right, x, w: (tf32(x) @ tf32(w.values()).T).astype(np.float32),
)


def blocks_of(x: F32, weight: Weight) -> tuple[Any, Any, F64]:
    """Return the blocks of activations, the blocks of weights, and the products of their scales."""
    from lockstep.engine.activations.q8_0 import Q8_0Activations

    blocks = weight.raw.view(weight.format.layout).reshape(weight.shape[0], -1)
    given = Q8_0Activations.quantise(x)
    return given, blocks, given["d"].astype(float)[:, None] * blocks["d"].astype(float)[None]


class Saturation(WrongProduct, name="mutant:int16-saturation"):
    """A product like the maddubs instruction. Weights become unsigned bytes by adding 128. Pairs of
    products are added in 16 bits, which may saturate."""

    mistake = "two products of bytes are added in 16 bits, which saturates"
    effect = "text is worse, with large weights"
    source = "ik_llama.cpp #427, ik_llama.cpp #137"
    shows_on = "q8_0"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        given, blocks, scales = blocks_of(x, weight)
        q = blocks["qs"].astype(np.int64) + 128
        a = given["qs"].astype(np.int64)
        pairs = (a[:, None] * q[None]).reshape(len(a), len(q), -1, 16, 2).sum(axis=-1)
        sums = pairs.clip(-32768, 32767).sum(axis=-1) - 128 * a.sum(axis=-1)[:, None]
        found: F32 = (sums * scales).sum(axis=-1).astype(np.float32)
        return found


class LowestByte(WrongProduct, name="mutant:sign-of-lowest-byte"):
    """A product of |a| and the weight with the sign of a. In eight bits, -128 stays -128 when
    negated."""

    mistake = "a weight of -128 is negated in eight bits, and stays -128"
    effect = "text is a little worse, with weights that other programs quantised"
    source = "ggml #1393"
    shows_on = "lowest-bytes"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        given, blocks, scales = blocks_of(x, weight)
        lowest = (blocks["qs"] == -128).astype(np.float64)
        negative = np.minimum(given["qs"], 0).astype(np.float64)
        # the right value is +128 |a|, the wrong one -128 |a|
        off = np.einsum("tbk,rbk->trb", -negative, lowest) * -256 * scales
        found: F32 = (right(x, weight).astype(np.float64) + off.sum(axis=-1)).astype(np.float32)
        return found


class RowsBeyondTile(WrongProduct, name="mutant:rows-beyond-tile"):
    mistake = "a batch is multiplied 32 tokens at a time, and remaining tokens are left out"
    effect = "long prompts are read wrongly, short prompts correctly"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        out[32:] = 0
        return out


WrongProduct.add_fault(
    "small-batches-of-first-row",
    "a kernel for 2 to 8 tokens always multiplies the first token",
    "only short prompts and speculative decoding are wrong",
    linear=lambda self, right, x, w: right(
        np.repeat(x[:1], len(x), axis=0) if 2 <= len(x) <= 8 else x, w
    ),
)


class WrongBiases(WrongProduct):
    """Mistakes in adding a bias: a wrong tensor, or a wrong sum."""

    shows_on = "arch:qwen2"
    site = "Qcur ADD"

    def graph_add_bias(
        self, right: Op, step: Any, layer: int, site: str, x: F32, name: str, summed: str
    ) -> F32:
        graph = self.loaded.graph
        h = graph.linear(step, layer, site, x, name)
        bias = graph.tensors.in_layer(layer, f"{self.read(name)}.bias").values()
        shown: F32 = step.probe(summed, layer, self.added(h, bias))
        return shown

    def read(self, name: str) -> str:
        return name

    def added(self, h: F32, bias: F32) -> F32:
        return h + bias


WrongBiases.add_fault(
    "bias-missing",
    "biases of queries, keys and values are not added",
    "word salad in Qwen2",
    added=lambda self, h, bias: h,
)
WrongBiases.add_fault(
    "bias-twice",
    "biases are added by the product, and again after it",
    "word salad in Qwen2",
    added=lambda self, h, bias: h + bias + bias,
)


class BiasOfFirstRow(WrongBiases, name="mutant:bias-of-first-row"):
    mistake = "the bias is added only to the first token of a batch"
    effect = "prompts are read wrongly"

    def added(self, h: F32, bias: F32) -> F32:
        out = h.copy()
        out[0] += bias
        return out


WrongBiases.add_fault(
    "bias-of-keys-for-values",
    "values get the bias of keys",
    "text is worse in Qwen2",
    site="Vcur ADD",
    read=lambda self, name: "attn_k" if name == "attn_v" else name,
)


class HeadsTransposed(WrongProduct, name="mutant:heads-matrices-transposed"):
    mistake = "the matrix that makes each head's queries narrow is read column by column"
    effect = NOISE
    shows_on = "arch:deepseek2"
    site = "q_nope_absorbed"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        if "attn_k_b" not in weight.name:
            return right(x, weight)
        turned = weight.values().reshape(weight.shape[::-1]).T
        return (x.astype(np.float64) @ turned.T).astype(np.float32)
