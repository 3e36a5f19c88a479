"""qwen2: llama with a bias on queries, keys and values; elements of rotary pairs are half a head
apart.

From the model's published definition (Qwen2 technical report; Qwen2Attention of transformers).
"""

from lockstep.engine.architectures.llama import DENSE, TENSORS, Llama
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.hparams import Hparams
from lockstep.engine.quants.base import F32

BIASES = table("""
    blk.*.attn_q.bias  n_embd_q
    blk.*.attn_k.bias  n_embd_kv
    blk.*.attn_v.bias  n_embd_kv
""")


class Qwen2(Llama, name="qwen2"):
    halves = True

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **BIASES, **DENSE}

    def heads(self, step: Step, layer: int, x: F32) -> tuple[F32, F32, F32]:
        hp = self.hparams
        self.compute_together(step, layer, x, "attn_q", "attn_k", "attn_v")
        q = self.add_bias(step, layer, "Qcur", x, "attn_q", "Qcur ADD")
        k = self.add_bias(step, layer, "Kcur", x, "attn_k", "Kcur ADD")
        v = self.add_bias(step, layer, "Vcur", x, "attn_v", "Vcur ADD")
        return (
            q.reshape(len(x), hp.n_head, -1),
            k.reshape(len(x), hp.n_head_kv, -1),
            v.reshape(len(x), hp.n_head_kv, -1),
        )
