"""Attention over contiguous cells, over blocks of a pool, and over latent keys and values."""

import numpy as np

from lockstep.engine.ops.attention import attend
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.fused.base import Call, Result, operation
from lockstep.engine.ops.near import F64, Expected, Near, near

REASON = "scores, a softmax and its sums in any order"


def causal(tokens: int, cells: int, offset: int, window: int) -> F64:
    """Return a mask: token t has position offset + t, and sees cells up to its own, or the last
    `window`."""
    back = offset + np.arange(tokens)[:, None] - np.arange(cells)[None]
    seen = (back >= 0) & ((back < window) if window else True)
    return np.where(seen, 0.0, -np.inf)


def expect_halves(found: Near) -> Expected:
    return found.expect(REASON)


def stack_heads(found: list[Near]) -> Near:
    return Near(np.stack([n.v for n in found]), np.stack([np.asarray(n.r) for n in found]))


@operation("flash_attention")
def flash_attention(call: Call) -> dict[str, Result]:
    """Attend by head. q: (batch, heads, tokens, dim), k, v: (batch, kv_heads, cells, dim) -> as q.

    Neighbouring heads share one of the kv_heads.
    """
    q, k, v = (call[name] for name in "qkv")
    tokens, cells = q.shape[2], k.shape[2]
    added = np.zeros((1, 1))
    if call.number("causal"):
        added = causal(tokens, cells, call.number("pos_offset"), call.number("window"))
    found = [attend_heads(q[i], k[i], v[i], added, call.real("scale")) for i in range(len(q))]
    return {"y": expect_halves(stack_heads(found))}


def attend_heads(q: F64, k: F64, v: F64, added: F64, scale: float) -> Near:
    """Attend by head. q: (heads, tokens, dim), k and v: (kv_heads, cells, dim)."""
    k, v = (np.repeat(x, len(q) // len(x), axis=0) for x in (k, v))
    return near(attend(q, k, v, added, scale, ANY_ENGINE))


@operation("paged_decode_attention")
def paged_decode_attention(call: Call) -> dict[str, Result]:
    """Attend to pools of blocks: (blocks, kv_heads, block_size, dim). Each sequence has a row in
    the tables, (sequences, blocks), and a length.

    Either q has one token of each sequence: (sequences, heads, dim). Or q has the last tokens of
    one sequence's context: (heads, tokens, dim).
    """
    lengths, single = call.inputs["context_lens"], call.number("q_len") == 1
    q = call["q"][:, :, None] if single else call["q"][None]
    found = []
    for i, length in enumerate(lengths):
        k, v = (cells_of(call, f"{name}_pool", i, int(length)) for name in "kv")
        tokens = q.shape[2]
        added = causal(tokens, int(length), int(length) - tokens, 0)
        found.append(attend_heads(q[i], k, v, added, call.real("scale")))
    all_of_them = stack_heads(found)
    return {"y": expect_halves(all_of_them[:, :, 0] if single else all_of_them[0])}


def cells_of(call: Call, pool: str, sequence: int, length: int) -> F64:
    """Return the context of a sequence in order: (kv_heads, length, dim)."""
    blocks = call[pool][call.inputs["block_tables"][sequence]]
    return np.concatenate(list(blocks), axis=1)[:, :length]


@operation("mla_attention")
def mla_attention(call: Call) -> dict[str, Result]:
    """Compute multi-head latent attention in its absorbed form. All heads share one key, the latent
    vector plus a rotated part; the value is the latent vector.

    q: (batch, heads, tokens, rank + rope), kv_compressed: (batch, cells, rank), kv_rope: (batch,
    cells, rope) -> (batch, heads, tokens, rank)
    """
    q, latent, turned = (call[name] for name in ("q", "kv_compressed", "kv_rope"))
    added = causal(q.shape[2], latent.shape[1], call.number("pos_offset"), 0)
    keys = np.concatenate([latent, turned], axis=-1)
    found = [
        attend_heads(q[i], keys[i, None], latent[i, None], added, call.real("scale"))
        for i in range(len(q))
    ]
    return {"y": expect_halves(stack_heads(found))}
