"""llama: norms before each half-layer, neighbouring rotary pairs, grouped heads, and a gated
feed-forward network."""

from collections.abc import Iterator

from lockstep.harness.acid.architectures.base import PLAIN, AcidArchitecture, Tests
from lockstep.harness.acid.coded import FORMATS
from lockstep.harness.acid.measurements.feed_forward import GateAndUp, Layers, MatrixEdges, Silu
from lockstep.harness.acid.measurements.heads import KeyGroups, LayersCaches, ValueGroups
from lockstep.harness.acid.measurements.norms import (
    AttnNormWeight,
    FfnNormWeight,
    NormCentred,
    NormEps,
    OutputNormWeight,
)
from lockstep.harness.acid.measurements.prompt import (
    CausalMask,
    EachTokensNorm,
    Far64,
    Far256,
    PromptEnd,
    PromptPositions,
)
from lockstep.harness.acid.measurements.rope import Base, Pairing, SlowPairs, ValuesStay
from lockstep.harness.acid.measurements.scores import (
    EarlierToken,
    NewestToken,
    ScoreScale,
    Softmax,
    SoftmaxDivided,
)
from lockstep.harness.acid.measurements.sentencepiece import (
    Bos,
    Bytes,
    EqualMerges,
    Merges,
    PoorMerges,
    SpacePrefix,
    Specials,
    TwoSpaces,
)
from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.tokens import SENTENCEPIECE
from lockstep.harness.acid.vocabulary import Keys
from lockstep.harness.acid.weights import AcidWeights

PROMPTED: Tests = (
    PromptEnd,
    PromptPositions,
    Far64,
    Far256,
    CausalMask,
    EachTokensNorm,
)
TOKENIZER: Tests = (
    Bos,
    SpacePrefix,
    Merges,
    EqualMerges,
    PoorMerges,
    Bytes,
    TwoSpaces,
    Specials,
)
# tests that look far back come last, because they read earlier lines of the report
USUAL: Tests = (
    Silu,
    GateAndUp,
    Layers,
    MatrixEdges,
    NormCentred,
    FfnNormWeight,
    OutputNormWeight,
    NewestToken,
    EarlierToken,
    NormEps,
    AttnNormWeight,
    ScoreScale,
    Softmax,
    SoftmaxDivided,
    ValueGroups,
    KeyGroups,
    LayersCaches,
    ValuesStay,
    Pairing,
    Base,
    SlowPairs,
)


class AcidLlama(AcidArchitecture):
    name = gguf = "llama"
    shape = Shape()
    vocabulary = SENTENCEPIECE
    prompted, usual = (*PROMPTED, *TOKENIZER), USUAL
    types = (*PLAIN, *FORMATS)

    def keys(self, s: Shape) -> Keys:
        return keys(s)

    def tensors(self, w: AcidWeights) -> Iterator[tuple[str, F64]]:
        return tensors(w)


def keys(s: Shape) -> Keys:
    return {
        "context_length": ("U32", s.n_ctx),
        "embedding_length": ("U32", s.n_embd),
        "block_count": ("U32", s.n_layer),
        "feed_forward_length": ("U32", s.n_ff),
        "attention.head_count": ("U32", s.n_head),
        "attention.head_count_kv": ("U32", s.n_head_kv),
        "attention.layer_norm_rms_epsilon": ("F32", s.eps),
        "rope.dimension_count": ("U32", s.n_embd_head),
        "rope.freq_base": ("F32", s.rope_base),
    }


def tensors(w: AcidWeights) -> Iterator[tuple[str, F64]]:
    """Yield the tensors of a model. Vectors are norms, which are F32 in every file."""
    n_embd, order = w.shape.n_embd, w.shape.order
    yield "token_embd.weight", w.embd
    for layer in range(w.shape.n_layer):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", w.attn_norm[layer]
        yield block + "attn_q.weight", w.q[layer][:, order].reshape(-1, n_embd)
        yield block + "attn_k.weight", w.k[layer][:, order].reshape(-1, n_embd)
        yield block + "attn_v.weight", w.v[layer][:, order].reshape(-1, n_embd)
        yield block + "attn_output.weight", w.o[layer][:, :, order].reshape(n_embd, -1)
        yield block + "ffn_norm.weight", w.ffn_norm[layer]
        yield block + "ffn_gate.weight", w.gate[layer]
        yield block + "ffn_up.weight", w.up[layer]
        yield block + "ffn_down.weight", w.down[layer]
    yield "output_norm.weight", w.output_norm
    yield "output.weight", w.head
