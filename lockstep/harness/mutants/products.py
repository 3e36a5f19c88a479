"""Products with weights that are wrong: what is left out, how it is added up, what is added."""

from typing import Any

import numpy as np

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.mutants.parts.changed import ops_with
from lockstep.harness.mutants.parts.mistakes import Mistake

RIGHT = Mirror.linear


def product(ops: Mirror, x: F32, weight: Weight, dtype: Any = np.float64) -> tuple[F64, F64]:
    """Activations as converted, and the weights."""
    rows = weight.values().reshape(-1, weight.shape[-1]).astype(dtype)
    return ops.activations(x, weight).astype(dtype), rows


def without_columns(ops: Mirror, x: F32, weight: Weight, lost: Any) -> F32:
    """The product with some activations taken for zero. lost: of so many columns."""
    x = x.copy()
    x[..., lost(x.shape[-1])] = 0
    return RIGHT(ops, x, weight)


class TailDropped(Mutant, name="mutant:tail-dropped"):
    ops = ops_with(
        linear=lambda ops, x, w: without_columns(ops, x, w, lambda n: slice(n - n % 64, None))
    )
    mistake = "a loop unrolled by 64 drops what is left of a row"
    group = "products"
    effect = "noise in models whose widths are no multiples of 64"
    site = "ffn_out"


class LastBlockDropped(Mutant, name="mutant:last-block-dropped"):
    ops = ops_with(linear=lambda ops, x, w: without_columns(ops, x, w, lambda n: slice(n - 32, n)))
    mistake = "the last block of each row is left out"
    group = "products"
    effect = "text is worse"
    shows_on = "q8_0"
    site = "Qcur"


class LastColumnDropped(Mutant, name="mutant:last-column-dropped"):
    ops = ops_with(linear=lambda ops, x, w: without_columns(ops, x, w, lambda n: -1))
    mistake = "the last column of each matrix is left out"
    group = "products"
    effect = "text is a little worse"
    site = "Qcur"


class LaneDropped(Mutant, name="mutant:lane-dropped"):
    ops = ops_with(linear=lambda ops, x, w: without_columns(ops, x, w, lambda n: slice(7, None, 8)))
    mistake = "of eight partial sums one is not added"
    group = "products"
    effect = "noise from the first token on"
    shows_on = "arch:llama:F16"
    site = "Qcur"


class LastRowDropped(Mutant, name="mutant:last-row-dropped"):
    mistake = "the last row of each matrix is not multiplied"
    group = "products"
    effect = "one number of each result stays zero"
    site = "Qcur"

    class ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            out = super().linear(x, weight)
            out[..., -1] = 0
            return out


class SquareTransposed(Mutant, name="mutant:square-transposed"):
    ops = ops_with(
        linear=lambda ops, x, w: (
            (np.matmul(*product(ops, x, w)).astype(np.float32))
            if w.shape[0] == w.shape[1]
            else RIGHT(ops, x, w)
        )
    )
    mistake = "square matrices are transposed, which no check of shapes sees"
    group = "products"
    effect = "noise from the first token on"
    site = "Qcur"


def in_half(ops: Mirror, x: F32, weight: Weight) -> F32:
    """Sixteen partial sums, each in half precision."""
    acts, rows = product(ops, x, weight)
    sums = np.zeros((len(acts), len(rows)), np.float16)
    for start in range(0, acts.shape[1], 16):
        some = slice(start, start + 16)
        sums = (sums + acts[:, some] @ rows[:, some].T).astype(np.float16)
    return sums.astype(np.float32)


class SumsInHalf(Mutant, name="mutant:sums-in-half"):
    ops = ops_with(linear=in_half)
    mistake = "products are added up in half precision"
    group = "products"
    effect = "text is a little worse; infinite for large activations"
    shows_on = "arch:llama:F16"
    site = "Qcur"


class BlockSumsInHalf(Mutant, name="mutant:block-sums-in-half"):
    mistake = "what a block comes to is rounded to half precision"
    group = "products"
    effect = "text is a little worse; NaN for large activations"
    source = "ik_llama.cpp #540"
    shows_on = "q4_0"
    site = "Qcur"

    class ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            acts, rows = product(self, x, weight)
            n = acts.shape[1] // 32
            cut = acts.reshape(len(acts), n, 32), rows.reshape(len(rows), n, 32)
            blocks = np.einsum("tbk,rbk->trb", *cut).astype(np.float16)
            found: F32 = blocks.astype(np.float64).sum(axis=-1).astype(np.float32)
            return found


def tf32(x: F32) -> F64:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32) + np.uint32(0x1000)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


class TensorFloat(Mutant, name="mutant:products-in-tf32"):
    ops = ops_with(linear=lambda ops, x, w: (tf32(x) @ tf32(w.values()).T).astype(np.float32))
    mistake = "factors are rounded to TF32, which nobody asked for"
    group = "products"
    effect = "nothing that a reader sees"
    site = "Qcur"


def saturated(ops: Mirror, x: F32, weight: Weight) -> F32:
    """As maddubs: bytes made unsigned by 128 times signed ones, two products added in 16 bits."""
    blocks = weight.raw.view(weight.format.layout).reshape(weight.shape[0], -1)
    given = ops_blocks(x)
    q = blocks["qs"].astype(np.int64) + 128
    a = given["qs"].astype(np.int64)
    pairs = (a[:, None] * q[None]).reshape(len(a), len(q), -1, 16, 2).sum(axis=-1)
    sums = pairs.clip(-32768, 32767).sum(axis=-1) - 128 * a.sum(axis=-1)[:, None]
    scales = given["d"].astype(float)[:, None] * blocks["d"].astype(float)[None]
    found: F32 = (sums * scales).sum(axis=-1).astype(np.float32)
    return found


def ops_blocks(x: F32) -> Any:
    from lockstep.engine.activations.q8_0 import Q8_0Activations

    return Q8_0Activations.quantise(x)


class Saturation(Mutant, name="mutant:int16-saturation"):
    ops = ops_with(linear=saturated)
    mistake = "two products of bytes are added in 16 bits, which saturates"
    group = "products"
    effect = "text is worse, with large weights"
    source = "ik_llama.cpp #427, ik_llama.cpp #137"
    shows_on = "q8_0"
    site = "Qcur"


def signed_by(ops: Mirror, x: F32, weight: Weight) -> F32:
    """|a| times the weight with a's sign, where -128 stays what it is when negated."""
    blocks = weight.raw.view(weight.format.layout).reshape(weight.shape[0], -1)
    given = ops_blocks(x)
    right = RIGHT(ops, x, weight).astype(np.float64)
    lowest = (blocks["qs"] == -128).astype(np.float64)
    scales = given["d"].astype(float)[:, None] * blocks["d"].astype(float)[None]
    negative = np.minimum(given["qs"], 0).astype(np.float64)
    # it should have been +128 |a|, and is -128 |a|
    off = np.einsum("tbk,rbk->trb", -negative, lowest) * -256 * scales
    found: F32 = (right + off.sum(axis=-1)).astype(np.float32)
    return found


class LowestByte(Mutant, name="mutant:sign-of-lowest-byte"):
    ops = ops_with(linear=signed_by)
    mistake = "a weight of -128 is negated in eight bits, and stays -128"
    group = "products"
    effect = "text is a little worse, with weights that other programs quantised"
    source = "ggml #1393"
    shows_on = "lowest-bytes"
    site = "Qcur"


class RowsBeyondTile(Mutant, name="mutant:rows-beyond-tile"):
    mistake = "a batch is multiplied 32 tokens at a time, and the rest is left out"
    group = "products"
    effect = "long prompts are read wrongly, short ones rightly"
    site = "Qcur"

    class ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            out = super().linear(x, weight)
            out[32:] = 0
            return out


class SmallBatches(Mutant, name="mutant:small-batches-of-first-row"):
    mistake = "a kernel for 2 to 8 tokens multiplies the first of them each time"
    group = "products"
    effect = "short prompts and speculative decoding are wrong, all else is right"
    site = "Qcur"

    class ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            small = 2 <= len(x) <= 8
            return super().linear(np.repeat(x[:1], len(x), axis=0) if small else x, weight)


class WrongBiases(Mistake):
    """What becomes of a sum with a bias, by the tensor's name."""

    group = "products"
    shows_on = "arch:qwen2"

    def change(self, model: Model) -> None:
        graph = model.graph

        def biased(step: Any, layer: int, site: str, x: F32, name: str, summed: str) -> F32:
            h = graph.linear(step, layer, site, x, name)
            bias = graph.tensors.in_layer(layer, f"{self.read(name)}.bias").values()
            shown: F32 = step.probe(summed, layer, self.added(h, bias))
            return shown

        graph.biased = biased  # type: ignore[method-assign]

    def read(self, name: str) -> str:
        return name

    def added(self, h: F32, bias: F32) -> F32:
        return h + bias


class BiasMissing(WrongBiases, name="mutant:bias-missing"):
    mistake = "biases of queries, keys and values are not added"
    effect = "word salad in Qwen2"
    site = "Qcur ADD"

    def added(self, h: F32, bias: F32) -> F32:
        return h


class BiasTwice(WrongBiases, name="mutant:bias-twice"):
    mistake = "biases are added by the product and once more behind it"
    effect = "word salad in Qwen2"
    site = "Qcur ADD"

    def added(self, h: F32, bias: F32) -> F32:
        return h + bias + bias


class BiasOfFirstRow(WrongBiases, name="mutant:bias-of-first-row"):
    mistake = "the bias is added to the first token of a batch alone"
    effect = "prompts are read wrongly"
    site = "Qcur ADD"

    def added(self, h: F32, bias: F32) -> F32:
        out = h.copy()
        out[0] += bias
        return out


class BiasOfKeys(WrongBiases, name="mutant:bias-of-keys-for-values"):
    mistake = "values get the bias of keys"
    effect = "text is worse in Qwen2"
    site = "Vcur ADD"

    def read(self, name: str) -> str:
        return "attn_k" if name == "attn_v" else name


class HeadsTransposed(Mutant, name="mutant:heads-matrices-transposed"):
    mistake = "the matrix of each head that makes queries narrow is read column by column"
    group = "products"
    effect = "noise from the first token on"
    shows_on = "arch:deepseek2"
    site = "q_nope_absorbed"

    class ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            if "attn_k_b" not in weight.name:
                return super().linear(x, weight)
            turned = weight.values().reshape(weight.shape[::-1]).T
            return (x.astype(np.float64) @ turned.T).astype(np.float32)
