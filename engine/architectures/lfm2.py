"""lfm2: layers of short convolutions with gates before and after, and some attention layers.

From the model's published definition (LFM2 technical report; Lfm2ShortConv and Lfm2Attention of
transformers). Names of nodes are llama.cpp's, which took them from transformers. The input of a
feed-forward network has the network's name. Files with a window are not covered.
"""

import math
from dataclasses import dataclass

import numpy as np

from lockstep.engine.architectures.llama import DENSE, Llama
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.errors import InvalidModel
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.memory.recurrent import States
from lockstep.engine.memory.store import KeysValues
from lockstep.engine.ops.ggml.recurrent import convolve_windows
from lockstep.engine.ops.reference import round_once
from lockstep.engine.quants.base import F32

TENSORS = table("""
    token_embd.weight                            n_vocab      n_embd
    blk.*.attn_norm.weight                       n_embd
    blk.*.attn_q.weight?attention                n_embd_q     n_embd
    blk.*.attn_k.weight?attention                n_embd_kv    n_embd
    blk.*.attn_v.weight?attention                n_embd_kv    n_embd
    blk.*.attn_q_norm.weight?attention           n_embd_head
    blk.*.attn_k_norm.weight?attention           n_embd_head
    blk.*.attn_output.weight?attention           n_embd       n_embd_q
    blk.*.shortconv.in_proj.weight?convolution   n_bcx        n_embd
    blk.*.shortconv.conv.weight?convolution      n_embd       l_cache
    blk.*.shortconv.out_proj.weight?convolution  n_embd       n_embd
    blk.*.ffn_norm.weight                        n_embd
    token_embd_norm.weight                       n_embd
    output.weight?                               n_vocab      n_embd
""")


@dataclass(frozen=True, kw_only=True)
class Lfm2Hparams(Hparams):
    l_cache: int  # number of tokens that a convolution sees, including the newest
    attends: tuple[bool, ...]  # by layer: True for attention

    @property
    def n_bcx(self) -> int:
        """Return the number of rows of the matrix that makes both gates and the gated values."""
        return 3 * self.n_embd


def heads_by_layer(keys: Keys, name: str, n_layer: int) -> list[int]:
    """Read the number of heads of each layer; the file may give one number for all."""
    key = f"{keys.arch}.attention.{name}"
    keys.read.add(key)
    if key not in keys.metadata:
        raise InvalidModel(f"the key {key!r} is missing")
    found = np.asarray(keys.metadata[key].data).reshape(-1)
    if found.dtype.kind not in "iu" or found.min(initial=0) < 0 or len(found) not in (1, n_layer):
        raise InvalidModel(f"{key} must be a number of heads, or one for each layer")
    return [int(each) for each in found]


class Lfm2(Llama, name="lfm2"):
    hparams: Lfm2Hparams
    halves = True

    @classmethod
    def hparams_of(cls, keys: Keys) -> Lfm2Hparams:
        n_embd, n_layer = keys.positive("embedding_length"), keys.positive("block_count")
        heads = heads_by_layer(keys, "head_count", n_layer)
        kv, n_head = heads_by_layer(keys, "head_count_kv", n_layer), max(heads)
        if not n_head or len({*heads} - {0}) > 1 or len({*kv} - {0}) > 1:
            raise InvalidModel("lfm2 needs the same number of heads in every attention layer")
        l_cache = keys.positive("shortconv.l_cache")
        if l_cache < 2:
            raise InvalidModel(f"lfm2.shortconv.l_cache is {l_cache}; expected 2 or more")
        return Lfm2Hparams(
            n_vocab=keys.vocabulary_size(),
            n_ctx_train=keys.positive("context_length"),
            n_embd=n_embd,
            n_layer=n_layer,
            n_ff=keys.positive("feed_forward_length"),
            n_head=n_head,
            n_head_kv=max(kv) or n_head,
            n_embd_head=n_embd // n_head,
            f_norm_rms_eps=keys.get("attention.layer_norm_rms_epsilon", float),
            rope_freq_base=keys.get("rope.freq_base", float, 10000.0),
            l_cache=l_cache,
            attends=tuple(n > 0 for n in kv),
        )

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **DENSE}

    def kinds(self, layer: int) -> tuple[str, ...]:
        return ("attention" if self.attends(layer) else "convolution",)

    def attends(self, layer: int) -> bool:
        return self.hparams.attends[layer % len(self.hparams.attends)]

    def memory_of_layer(self, layer: int) -> KeysValues | States:
        """Return the shapes of keys and values, or of the last tokens that a convolution will see
        again.
        """
        if self.attends(layer):
            return super().memory_of_layer(layer)
        return States(((self.hparams.n_embd, self.hparams.l_cache - 1),))

    def forward(self, step: Step) -> F32:
        hp, ops, probe, w = self.hparams, step.ops, step.probe, self.tensors
        embd = ops.get_rows(w["token_embd.weight"], step.batch.tokens)
        x = probe("model.embed_tokens", None, embd)
        for layer in range(hp.n_layer):
            h = self.norm(step, layer, "model.layers.{}.operator_norm", x, "attn_norm")
            h = (self.attention if self.attends(layer) else self.convolution)(step, layer, h)
            if layer == hp.n_layer - 1:  # from here on, only rows with outputs are needed
                h, x = h[step.batch.outputs], x[step.batch.outputs]
            x = ops.add(x, h)
            h = self.norm(step, layer, "model.layers.{}.ffn_out", x, "ffn_norm")
            h = self.feed_forward(step, layer, h)
            x = probe("l_out", layer, ops.add(x, h))
        norm = w["token_embd_norm.weight"].values()
        x = probe("result_norm", None, ops.rms_norm(x, norm, hp.f_norm_rms_eps))
        logits: F32 = probe("result_output", None, ops.linear(x, self.head()))
        return logits

    def convolution(self, step: Step, layer: int, x: F32) -> F32:
        """Return out(c * conv(b * x)); each channel is convolved on its own over its last l_cache
        tokens."""
        name, ops, memory = "model.layers.{}.conv", step.ops, step.memory[layer]
        (tail,) = memory.read()  # (sequences, width, l_cache - 1)
        bcx = self.linear(step, layer, f"{name}.in_proj", x, "shortconv.in_proj")
        b, c, h = np.split(bcx, 3, axis=1)
        n, width = len(x) // len(tail), x.shape[1]
        bx = ops.mul(b, h).reshape(len(tail), n, width).transpose(0, 2, 1)
        bx = np.concatenate([tail, bx], axis=-1)
        memory.store(bx[..., n:])
        kernel = self.tensors.in_layer(layer, "shortconv.conv.weight").values()
        h = round_once(convolve_windows(bx.astype(np.float64), kernel.astype(np.float64)).v)
        h = step.probe(f"{name}.conv", layer, h.transpose(0, 2, 1))  # (sequences, tokens, width)
        h = ops.mul(c, h.reshape(len(x), width))
        return self.linear(step, layer, f"{name}.out_proj", h, "shortconv.out_proj")

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp, at, rope = self.hparams, step.batch.positions, self.rope_params(layer)
        q, k, v = self.heads(step, layer, x)
        name = "model.layers.{}.self_attn"
        q = self.norm(step, layer, f"{name}.q_layernorm", q, "attn_q_norm")
        k = self.norm(step, layer, f"{name}.k_layernorm", k, "attn_k_norm")
        q, k = step.ops.rope(q, at, rope), step.ops.rope(k, at, rope)
        out = step.attend(layer, q, k, v, 1 / math.sqrt(hp.n_embd_head))
        return self.linear(step, layer, f"{name}.out_proj", out, "attn_output")
