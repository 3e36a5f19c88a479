"""mamba: no attention; a convolution over the last few tokens, then a selective state space.

From the model's published definition (Gu and Dao 2023, "Mamba: Linear-Time Sequence Modeling with
Selective State Spaces", algorithm 2; MambaMixer of transformers). A file holds A = -exp(A_log).
"""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.errors import InvalidModel
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.memory.recurrent import States
from lockstep.engine.ops.ggml.recurrent import convolve_windows, scan_states
from lockstep.engine.ops.near import F64, exact, near, silu
from lockstep.engine.ops.reference import round_once
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight

TENSORS = table("""
    token_embd.weight        n_vocab     n_embd
    blk.*.attn_norm.weight   n_embd
    blk.*.ssm_in.weight      n_both      n_embd
    blk.*.ssm_conv1d.weight  d_inner     d_conv
    blk.*.ssm_conv1d.bias    d_inner
    blk.*.ssm_x.weight       n_selected  d_inner
    blk.*.ssm_dt.weight      d_inner     dt_rank
    blk.*.ssm_dt.bias        d_inner
    blk.*.ssm_a              d_inner     d_state
    blk.*.ssm_d              d_inner
    blk.*.ssm_out.weight     n_embd      d_inner
    output_norm.weight       n_embd
    output.weight?           n_vocab     n_embd
""")


@dataclass(frozen=True, kw_only=True)
class MambaHparams(Hparams):
    d_inner: int
    d_conv: int  # number of tokens that a convolution sees, including the newest
    d_state: int
    dt_rank: int

    @property
    def n_both(self) -> int:
        """Return the number of rows of the matrix that makes the mixed values and their gate."""
        return 2 * self.d_inner

    @property
    def n_selected(self) -> int:
        """Return the number of rows of the matrix that makes steps, B and C from the token."""
        return self.dt_rank + 2 * self.d_state


class Mamba(Architecture, name="mamba"):
    hparams: MambaHparams
    ignored = Architecture.ignored | {
        *("feed_forward_length", "attention.head_count", "attention.head_count_kv")
    }

    @classmethod
    def hparams_of(cls, keys: Keys) -> MambaHparams:
        n_embd, d_inner = keys.positive("embedding_length"), keys.positive("ssm.inner_size")
        if d_inner != 2 * n_embd:  # llama.cpp accepts no other value
            raise InvalidModel(f"mamba.ssm.inner_size is {d_inner}; expected {2 * n_embd}")
        keys.without("ssm.dt_b_c_rms", bool, False)  # true in FalconMamba, which has further norms
        return MambaHparams(
            n_vocab=keys.vocabulary_size(),
            n_ctx_train=keys.positive("context_length"),
            n_embd=n_embd,
            n_layer=keys.positive("block_count"),
            n_ff=0,
            n_head=1,
            n_head_kv=1,
            n_embd_head=d_inner,
            f_norm_rms_eps=keys.get("attention.layer_norm_rms_epsilon", float),
            d_inner=d_inner,
            d_conv=keys.positive("ssm.conv_kernel"),
            d_state=keys.positive("ssm.state_size"),
            dt_rank=keys.positive("ssm.time_step_rank"),
        )

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return TENSORS

    def rope_params(self, layer: int = 0) -> None:
        return None

    def memory_of_layer(self, layer: int) -> States:
        """Return the shapes of the last tokens that a convolution will see again, and of the
        state."""
        hp = self.hparams
        return States(((hp.d_inner, hp.d_conv - 1), (hp.d_inner, hp.d_state)))

    def forward(self, step: Step) -> F32:
        hp, ops, probe, w = self.hparams, step.ops, step.probe, self.tensors
        x = probe("embd", None, ops.get_rows(w["token_embd.weight"], step.batch.tokens))
        for layer in range(hp.n_layer):
            h = self.norm(step, layer, "attn_norm", x)  # (tokens, width)
            h = self.mix(step, layer, h)
            if layer == hp.n_layer - 1:  # from here on, only rows with outputs are needed
                h, x = h[step.batch.outputs], x[step.batch.outputs]
            x = probe("l_out", layer, ops.add(h, x))
        norm = w["output_norm.weight"].values()
        x = probe("result_norm", None, ops.rms_norm(x, norm, hp.f_norm_rms_eps))
        logits: F32 = probe("result_output", None, ops.linear(x, self.head()))
        return logits

    def mix(self, step: Step, layer: int, x: F32) -> F32:
        hp, ops = self.hparams, step.ops
        memory = step.memory[layer]
        tail, state = memory.read()  # (sequences, d_inner, d_conv - 1), (..., d_inner, d_state)
        h, gate = np.split(ops.linear(x, self.weight(layer, "ssm_in.weight")), 2, axis=1)
        h, tail = self.convolve(layer, h, tail)
        chosen = ops.linear(h, self.weight(layer, "ssm_x.weight"))
        dt, b, c = np.split(chosen, (hp.dt_rank, hp.dt_rank + hp.d_state), axis=1)
        dt = ops.linear(dt, self.weight(layer, "ssm_dt.weight"))
        dt = ops.add(dt, self.weight(layer, "ssm_dt.bias").values())
        y, state = self.scan(layer, h, dt, b, c, state)
        memory.store(tail, state)
        y = ops.add(y, ops.mul(h, self.weight(layer, "ssm_d").values()))
        return ops.linear(ops.swiglu(gate, y), self.weight(layer, "ssm_out.weight"))

    def convolve(self, layer: int, x: F32, tail: F32) -> tuple[F32, F32]:
        """Convolve each channel over its last d_conv tokens: (tokens, d_inner) in and out."""
        n, hp = len(x) // len(tail), self.hparams
        rows = x.reshape(len(tail), n, hp.d_inner).transpose(0, 2, 1)
        rows = np.concatenate([tail, rows], axis=-1)  # (sequences, d_inner, d_conv - 1 + n)
        kernel = self.weight(layer, "ssm_conv1d.weight").values().astype(np.float64)
        out = round_once(convolve_windows(rows.astype(np.float64), kernel).v)
        out = out.transpose(0, 2, 1).reshape(len(x), hp.d_inner)
        out = out + self.weight(layer, "ssm_conv1d.bias").values()
        return round_once(near(silu(exact(out.astype(np.float64)))).v), rows[..., n:]

    def scan(self, layer: int, x: F32, dt: F32, b: F32, c: F32, state: F32) -> tuple[F32, F32]:
        """Run the state-space scan: every channel is a head of one element."""
        sets, hp = len(state), self.hparams
        decay = self.weight(layer, "ssm_a").values()
        outs, states = scan_states(
            wide(state, sets, hp.d_inner, 1, hp.d_state),
            wide(x, sets, -1, hp.d_inner, 1),
            wide(dt, sets, -1, hp.d_inner),
            wide(decay, hp.d_inner, 1, hp.d_state),
            wide(b, sets, -1, 1, hp.d_state),
            wide(c, sets, -1, 1, hp.d_state),
        )
        y = round_once(np.stack([out.v[..., 0] for out in outs], axis=1))
        return y.reshape(-1, hp.d_inner), round_once(states[-1].v[:, :, 0])

    def weight(self, layer: int, name: str) -> Weight:
        return self.tensors.in_layer(layer, name)


def wide(x: F32, *shape: int) -> F64:
    return x.astype(np.float64).reshape(shape)
