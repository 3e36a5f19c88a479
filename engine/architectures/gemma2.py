"""gemma2: gemma3 without norms of heads; scores are capped, a window in every other layer.

From the model's published definition (Gemma 2 technical report; gemma_pytorch; Gemma2Attention of
transformers).
"""

import math
from dataclasses import asdict, dataclass

from lockstep.engine.architectures.gemma3 import POST_NORMS, Gemma3, Gemma3Hparams
from lockstep.engine.architectures.llama import DENSE, TENSORS, Llama
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table
from lockstep.engine.errors import Unsupported
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.ops.reference import RopeParams
from lockstep.engine.quants.base import F32

LARGEST = 46  # number of layers of the 27B model, which alone scales scores by the width


@dataclass(frozen=True, kw_only=True)
class Gemma2Hparams(Gemma3Hparams):
    f_attn_logit_softcapping: float

    def check(self, arch: str) -> None:
        super().check(arch)
        if not (self.f_attn_logit_softcapping > 0 and self.f_final_logit_softcapping > 0):
            raise Unsupported(f"{arch}: a cap of logits is 0 or less; expected above 0")


class Gemma2(Gemma3, name="gemma2"):
    hparams: Gemma2Hparams
    post_norm = ""  # llama.cpp numbers its nodes of this name over all layers

    @classmethod
    def hparams_of(cls, keys: Keys) -> Gemma2Hparams:
        plain = Llama.hparams_of(keys)
        keys.same_scale_in_windows()
        return Gemma2Hparams(
            **asdict(plain),
            n_swa=keys.positive("attention.sliding_window", 4096),
            windows=keys.windows(plain.n_layer, every=2),
            rope_freq_base_swa=plain.rope_freq_base,
            f_attn_logit_softcapping=keys.get("attn_logit_softcapping", float, 50.0),
            f_final_logit_softcapping=keys.get("final_logit_softcapping", float, 30.0),
        )

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        """Return the table of tensors without an output matrix: llama.cpp refuses a file that has
        one.
        """
        tied = {name: shape for name, shape in TENSORS.items() if name != "output.weight?"}
        return {**tied, **POST_NORMS, **DENSE}

    def rope_params(self, layer: int = 0) -> RopeParams:
        hp = self.hparams
        return RopeParams(hp.n_embd_head, hp.rope_freq_base, hp.rope_freq_scale, None, halves=True)

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp, at, rope = self.hparams, step.batch.positions, self.rope_params(layer)
        q = self.linear(step, layer, "Qcur", x, "attn_q").reshape(len(x), hp.n_head, -1)
        k = self.linear(step, layer, "Kcur", x, "attn_k").reshape(len(x), hp.n_head_kv, -1)
        v = self.linear(step, layer, "Vcur", x, "attn_v").reshape(len(x), hp.n_head_kv, -1)
        q = step.probe("Qcur_rope", layer, step.ops.rope(q, at, rope))
        k = step.probe("Kcur_rope", layer, step.ops.rope(k, at, rope))
        width = hp.n_embd // hp.n_head if hp.n_layer == LARGEST else hp.n_embd_head
        q = step.ops.scale(q, 1 / math.sqrt(width))
        out = step.attend(layer, q, k, v, 1.0, self.window(layer), hp.f_attn_logit_softcapping)
        return self.linear(step, layer, "attn_out", out, "attn_output")
