"""qwen3: llama with a norm on every head of queries and keys, and rotary pairs half a head apart.

From the model's published definition (Qwen3 technical report; Qwen3Attention of transformers).
"""

from lockstep.engine.architectures.llama import DENSE, TENSORS, Llama
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.hparams import Hparams
from lockstep.engine.quants.base import F32

NORMS = table("""
    blk.*.attn_q_norm.weight  n_embd_head
    blk.*.attn_k_norm.weight  n_embd_head
""")


class Qwen3(Llama, name="qwen3"):
    halves = True

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **NORMS, **DENSE}

    def heads(self, step: Step, layer: int, x: F32) -> tuple[F32, F32, F32]:
        q, k, v = super().heads(step, layer, x)
        q = self.norm(step, layer, "Qcur_normed", q, "attn_q_norm")
        k = self.norm(step, layer, "Kcur_normed", k, "attn_k_norm")
        return q, k, v
