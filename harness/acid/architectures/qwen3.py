"""qwen3: llama with a norm on each head of queries and keys, rotary pairs half a head apart, and a
tokenizer with merges."""

from collections.abc import Iterator

from lockstep.harness.acid.architectures import llama
from lockstep.harness.acid.architectures.base import AcidArchitecture
from lockstep.harness.acid.measurements.bpe import (
    BpeBeginning,
    BpeBytes,
    BpeMerges,
    Digits,
    UserDefined,
)
from lockstep.harness.acid.measurements.normed_heads import HeadNormWeights, KeyNorm, QueryNorm
from lockstep.harness.acid.measurements.scores import SoftmaxDivided
from lockstep.harness.acid.normed_heads import NormedHeads
from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.tokens_bpe import vocabulary
from lockstep.harness.acid.vocabulary import Keys
from lockstep.harness.acid.weights import AcidWeights

HEADS = llama.USUAL.index(SoftmaxDivided) + 1


class AcidQwen3(AcidArchitecture):
    name = gguf = "qwen3"
    shape = Shape(halves=True)
    vocabulary = vocabulary("qwen2", n_digits=3)
    prompted = (*llama.PROMPTED, BpeBeginning, BpeMerges, BpeBytes, Digits, UserDefined)
    usual = (*llama.USUAL[:HEADS], HeadNormWeights, QueryNorm, KeyNorm, *llama.USUAL[HEADS:])

    def make_weights(self, shape: Shape, n_vocab: int) -> AcidWeights:
        return NormedHeads(shape, n_vocab)

    def keys(self, s: Shape) -> Keys:
        sizes = {
            "attention.key_length": ("U32", s.n_embd_head),
            "attention.value_length": ("U32", s.n_embd_head),
        }
        return {**llama.keys(s), **sizes}

    def tensors(self, w: AcidWeights) -> Iterator[tuple[str, F64]]:
        assert isinstance(w, NormedHeads)
        for name, values in llama.tensors(w):
            yield name, values
            for kind, norm in (("q", w.q_norm), ("k", w.k_norm)):
                if name.endswith(f".attn_{kind}.weight"):
                    layer = int(name.split(".")[1])
                    yield f"blk.{layer}.attn_{kind}_norm.weight", norm[layer][w.shape.order]
