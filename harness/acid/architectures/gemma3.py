"""gemma3: windows in five of six layers, two rope bases, norms before and after each half-layer,
and a tied output."""

from collections.abc import Iterator

from lockstep.harness.acid.architectures import llama
from lockstep.harness.acid.architectures.base import AcidArchitecture
from lockstep.harness.acid.measurements.normed_heads import HeadNormWeights
from lockstep.harness.acid.measurements.norms import (
    AttnNormWeight,
    FfnNormWeight,
    NormCentred,
    NormEps,
    OutputNormWeight,
)
from lockstep.harness.acid.measurements.prompt import PromptEnd
from lockstep.harness.acid.measurements.rope import Pairing
from lockstep.harness.acid.measurements.sandwich import (
    EachLayer,
    EmbeddingScale,
    Geglu,
    GegluBranches,
    GlobalBase,
    LocalBase,
    OneKeyNorm,
    PostAttentionNorm,
    PostFfwNorm,
    QueryScale,
    SlowQueryNorm,
)
from lockstep.harness.acid.measurements.scores import (
    EarlierToken,
    NewestToken,
    Softmax,
    SoftmaxDivided,
)
from lockstep.harness.acid.measurements.windows import (
    FarInGlobal,
    GlobalMask,
    PromptInWindow,
    WindowBeyond,
    WindowInside,
)
from lockstep.harness.acid.sandwich import LOCAL_BASE, Sandwich
from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.tokens import ONLY_LETTERS
from lockstep.harness.acid.vocabulary import Keys
from lockstep.harness.acid.weights import AcidWeights

PROMPTED = (PromptEnd, WindowInside, WindowBeyond, FarInGlobal, GlobalMask, PromptInWindow)
# the letter n is the last token within the window when WindowInside is answered
WINDOW = ONLY_LETTERS.back("n") + 2 + PROMPTED.index(WindowInside) + 1


class AcidGemma3(AcidArchitecture):
    """The acid model of gemma3. It has no F16 type, because ggml rounds the inputs of an F16 matrix
    to half precision.

    The last norm's weights are large, because the table's rows are short for answers. These weights
    are also too large for half precision.
    """

    name = gguf = "gemma3"
    shape = Shape(n_layer=6, n_head=2, n_head_kv=1, n_ff=16, halves=True)
    vocabulary = ONLY_LETTERS
    prompted = PROMPTED
    usual = (
        Geglu,
        GegluBranches,
        EachLayer,
        EmbeddingScale,
        NormCentred,
        FfnNormWeight,
        PostFfwNorm,
        OutputNormWeight,
        NewestToken,
        EarlierToken,
        NormEps,
        AttnNormWeight,
        QueryScale,
        Softmax,
        SoftmaxDivided,
        PostAttentionNorm,
        HeadNormWeights,
        SlowQueryNorm,
        OneKeyNorm,
        Pairing,
        LocalBase,
        GlobalBase,
    )
    types = ("F32", "BF16")
    # every answer depends on the last norm and on what the parts of a layer write
    foundations = frozenset({"output-norm-weight", "embedding-scale"})

    def make_weights(self, shape: Shape, n_vocab: int) -> AcidWeights:
        return Sandwich(shape, n_vocab)

    def keys(self, s: Shape) -> Keys:
        keys = {
            **llama.keys(s),
            "attention.key_length": ("U32", s.n_embd_head),
            "attention.value_length": ("U32", s.n_embd_head),
            "attention.sliding_window": ("U32", WINDOW),
            "rope.freq_base_swa": ("F32", LOCAL_BASE),
        }
        del keys["rope.dimension_count"]  # files of gemma3 lack this key
        return keys

    def tensors(self, w: AcidWeights) -> Iterator[tuple[str, F64]]:
        assert isinstance(w, Sandwich)
        order = w.shape.order
        for name, values in llama.tensors(w):
            if name == "output.weight":
                continue
            yield name, values
            block, _, part = name.rpartition(".attn_")
            layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
            if part == "q.weight":
                yield f"{block}.attn_q_norm.weight", w.q_norm[layer][order]
            elif part == "k.weight":
                yield f"{block}.attn_k_norm.weight", w.k_norm[layer][order]
            elif part == "output.weight":
                yield f"{block}.post_attention_norm.weight", w.post_attention_norm[layer]
            elif name.endswith("ffn_down.weight"):
                yield f"blk.{layer}.post_ffw_norm.weight", w.post_ffw_norm[layer]
