"""gpt2: learned positions, norms that subtract the mean, one matrix for queries, keys and values,
biases, and GELU."""

from collections.abc import Iterator

import numpy as np

from lockstep.harness.acid.architectures.base import AcidArchitecture
from lockstep.harness.acid.centred import Centred
from lockstep.harness.acid.measurements.bpe import (
    BpeBytes,
    BpeMerges,
    FirstBeginning,
    SpaceAndDigits,
    UserDefined,
)
from lockstep.harness.acid.measurements.fused import Biases, Heads
from lockstep.harness.acid.measurements.heads import LayersCaches
from lockstep.harness.acid.measurements.layer_norms import Bias, Eps, Mean, PlainFfnNormWeight
from lockstep.harness.acid.measurements.norms import AttnNormWeight, OutputNormWeight
from lockstep.harness.acid.measurements.plain_feed_forward import (
    Added,
    Gelu,
    PlainEdges,
    PlainLayers,
    UpBias,
)
from lockstep.harness.acid.measurements.positions import Distance, First
from lockstep.harness.acid.measurements.prompt import CausalMask, Far64, Far256, PromptEnd
from lockstep.harness.acid.measurements.scores import (
    EarlierToken,
    NewestToken,
    ScoreScale,
    Softmax,
    SoftmaxDivided,
)
from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.tokens_bpe import vocabulary
from lockstep.harness.acid.vocabulary import Keys
from lockstep.harness.acid.weights import AcidWeights

N = 96
SHARING = (
    *(UpBias, PlainLayers, PlainEdges, PlainFfnNormWeight),
    *(PromptEnd, Far64, Far256, BpeMerges, BpeBytes, SpaceAndDigits, UserDefined),
)


class AcidGpt2(AcidArchitecture):
    """The acid model of gpt2. A token holds the constant and a state (both 1), values that balance
    them, and its position. The sum of its squares is 4 + 1/2, plus eps for each of 96 elements."""

    name = gguf = "gpt2"
    shape = Shape(n_embd=N, n_head=3, n_head_kv=3, n_ctx=448, eps=1 / 64, squares=4.5 + N / 64)
    vocabulary = vocabulary("gpt-2", n_digits=1, letters="mkns~")
    prompted = (
        PromptEnd,
        Far64,
        Far256,
        CausalMask,
        FirstBeginning,
        BpeMerges,
        BpeBytes,
        SpaceAndDigits,
        UserDefined,
    )
    # tests that compare two tokens come after tests in layer 1, whose tokens have the same length
    usual = (
        Gelu,
        UpBias,
        PlainEdges,
        Mean,
        PlainLayers,
        Eps,
        Bias,
        PlainFfnNormWeight,
        OutputNormWeight,
        EarlierToken,
        AttnNormWeight,
        NewestToken,
        Added,
        Biases,
        First,
        ScoreScale,
        Softmax,
        SoftmaxDivided,
        Heads,
        LayersCaches,
        Distance,
    )

    def make_weights(self, shape: Shape, n_vocab: int) -> AcidWeights:
        made = Centred(shape, n_vocab)
        made.sharing = {test.name for test in SHARING} | {f"{Gelu.name}:1", f"{Bias.name}:0"}
        return made

    def keys(self, s: Shape) -> Keys:
        return {
            "context_length": ("U32", s.n_ctx),
            "embedding_length": ("U32", s.n_embd),
            "block_count": ("U32", s.n_layer),
            "feed_forward_length": ("U32", s.n_ff),
            "attention.head_count": ("U32", s.n_head),
            "attention.head_count_kv": ("U32", s.n_head_kv),
            "attention.layer_norm_epsilon": ("F32", s.eps),
        }

    def tensors(self, w: AcidWeights) -> Iterator[tuple[str, F64]]:
        assert isinstance(w, Centred)
        n_embd = w.shape.n_embd
        yield "token_embd.weight", w.embd
        yield "position_embd.weight", w.positions
        for layer in range(w.shape.n_layer):
            block = f"blk.{layer}."
            yield block + "attn_norm.weight", w.attn_norm[layer]
            yield block + "attn_norm.bias", w.attn_norm_bias[layer]
            fused = np.concatenate([m[layer].reshape(-1, n_embd) for m in (w.q, w.k, w.v)])
            yield block + "attn_qkv.weight", fused
            biases = (w.q_bias[layer], np.zeros_like(w.q_bias[layer]), w.v_bias[layer])
            yield block + "attn_qkv.bias", np.concatenate(biases).reshape(-1)
            yield block + "attn_output.weight", w.o[layer].reshape(n_embd, -1)
            yield block + "attn_output.bias", w.o_bias[layer]
            yield block + "ffn_norm.weight", w.ffn_norm[layer]
            yield block + "ffn_norm.bias", w.ffn_norm_bias[layer]
            yield block + "ffn_up.weight", w.gate[layer]
            yield block + "ffn_up.bias", w.up_bias[layer]
            yield block + "ffn_down.weight", w.down[layer]
            yield block + "ffn_down.bias", w.down_bias[layer]
        yield "output_norm.weight", w.output_norm
        yield "output_norm.bias", w.output_norm_bias
        yield "output.weight", w.head
