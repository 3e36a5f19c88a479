"""llama with experts, as in Mixtral: two of four experts are used, and their weights are divided by
their sum."""

from collections.abc import Iterator

from lockstep.harness.acid.architectures import llama
from lockstep.harness.acid.architectures.base import AcidArchitecture
from lockstep.harness.acid.experts import AcidExperts
from lockstep.harness.acid.measurements.experts import Choice, EachTokensExperts, Matrices
from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.tokens import ONLY_LETTERS
from lockstep.harness.acid.vocabulary import Keys
from lockstep.harness.acid.weights import AcidWeights


class LlamaMoe(AcidArchitecture):
    name, gguf = "llama-moe", "llama"
    shape = Shape(n_ff=12, n_expert=4, n_expert_used=2)
    vocabulary = ONLY_LETTERS
    prompted = (*llama.PROMPTED, EachTokensExperts)
    usual = (Choice, Matrices, *llama.USUAL)

    def make_weights(self, shape: Shape, n_vocab: int) -> AcidWeights:
        return AcidExperts(shape, n_vocab)

    def keys(self, s: Shape) -> Keys:
        experts = {
            "expert_count": ("U32", s.n_expert),
            "expert_used_count": ("U32", s.n_expert_used),
        }
        return {**llama.keys(s), **experts}

    def tensors(self, w: AcidWeights) -> Iterator[tuple[str, F64]]:
        assert isinstance(w, AcidExperts)
        for name, values in llama.tensors(w):
            block, _, rest = name.rpartition(".ffn_")
            layer = int(block.removeprefix("blk.") or 0)
            if rest == "gate.weight":
                yield f"{block}.ffn_gate_inp.weight", w.router[layer]
                yield f"{block}.ffn_gate_exps.weight", w.gates[layer]
            elif rest == "up.weight":
                yield f"{block}.ffn_up_exps.weight", w.ups[layer]
            elif rest == "down.weight":
                yield f"{block}.ffn_down_exps.weight", w.downs[layer]
            else:
                yield name, values
