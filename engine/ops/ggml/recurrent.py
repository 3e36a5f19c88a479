"""Ops that carry a state from token to token.

Each op is computed in float64 with a running bound, so the error of a state grows and decays as in
float32. Source: ggml-cpu/ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

import numpy as np

from lockstep.engine.errors import Unsupported
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import meaning
from lockstep.engine.ops.near import (
    F64,
    SMALLEST,
    Expected,
    Near,
    U,
    constant,
    exact,
    softplus,
    total,
)

REASON = "a running bound through the recursion: every operation rounded once, exp to 2 ulp"


def join_results(*parts: Near) -> Expected:
    """Join results as ggml does, one after the other in a flat tensor."""
    flat = [np.broadcast_to(np.asarray(p.r), p.v.shape).reshape(-1) for p in parts]
    value = np.concatenate([p.v.reshape(-1) for p in parts])
    return Expected(value, np.concatenate(flat) + U * np.abs(value) + SMALLEST, REASON)


def reshape_result(expected: Expected, node: Node) -> Expected:
    allowed = np.asarray(expected.allowed).reshape(node.value.shape)
    return Expected(expected.value.reshape(node.value.shape), allowed, expected.reason)


def stack_steps(items: list[Near], axis: int) -> Near:
    wide = [np.broadcast_to(np.asarray(i.r), i.v.shape) for i in items]
    return Near(np.stack([i.v for i in items], axis), np.stack(wide, axis))


def latest(states: list[Near], node: Node) -> list[Near]:
    """Return the last few states, the newest first. States of tokens before the first keep their
    old contents, which a node does not show.
    """
    # 0: older versions lack the parameter and keep the last state
    keep = max(1, int(node.params[0]))
    if len(states) < keep:
        raise Unsupported(f"{node.op} with snapshots of earlier tokens")
    return states[::-1][:keep]


def convolve_windows(x: F64, kernel: F64) -> Near:
    """Multiply sliding windows by a kernel. x: (sequences, channels, width), kernel: (channels,
    d_conv) -> (sequences, channels, width - d_conv + 1)"""
    d_conv = kernel.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(x, d_conv, axis=-1)
    return total(exact(windows) * exact(kernel[None, :, None, :]), d_conv, keep=False)


@meaning("SSM_CONV")
def ssm_conv(node: Node, _: Build) -> Expected:
    """Convolve each channel: (sequences, tokens, channels)."""
    kernel = node.wide(1)[0, 0]
    near = convolve_windows(node.wide(0)[0], kernel)
    out = near.expect(f"{kernel.shape[-1]} products summed")
    allowed = np.asarray(out.allowed).transpose(0, 2, 1).reshape(node.value.shape)
    return Expected(out.value.transpose(0, 2, 1).reshape(node.value.shape), allowed, out.reason)


def scan_states(
    state: F64, x: F64, dt: F64, decay: F64, b: F64, c: F64
) -> tuple[list[Near], list[Near]]:
    """Run the scan state = state * exp(dt * A) + B * x * dt; y = state . C. The step is
    the softplus of dt.

    state: (sequences, heads, dim, d_state); x: (sequences, tokens, heads, dim); dt: (sequences,
    tokens, heads); decay: A, (heads, 1, d_state or 1); b, c: (sequences, tokens, heads, d_state).
    -> y of each token: (sequences, heads, dim); the state after each.
    """
    near, outs, states = exact(state), [], []
    for t in range(x.shape[1]):
        step = softplus(exact(dt[:, t]))  # (sequences, heads)
        step = Near(step.v[..., None, None], np.asarray(step.r)[..., None, None])
        xdt = exact(x[:, t][..., None]) * step
        kept = near * (step * exact(decay)).exp()
        near = kept + exact(b[:, t][:, :, None, :]) * xdt
        states.append(near)
        outs.append(total(near * exact(c[:, t][:, :, None, :]), near.v.shape[-1], keep=False))
    return outs, states


@meaning("SSM_SCAN")
def ssm_scan(node: Node, _: Build) -> Expected:
    """Run the scan of a node. Mamba-1 has a decay for each state. Heads of a group share B and
    C."""
    s, x, dt, a, b, c = (node.wide(i) for i in range(6))
    ids = node.source(6).value
    assert ids is not None
    heads, groups = x.shape[2], b.shape[2]
    group = np.arange(heads) // (heads // groups)
    outs, states = scan_states(
        s[ids.reshape(-1)], x, dt[0], a[0, 0][:, None, :], b[:, :, group], c[:, :, group]
    )
    return reshape_result(join_results(stack_steps(outs, 1), *latest(states, node)), node)


@meaning("GATED_DELTA_NET")
def gated_delta_net(node: Node, _: Build) -> Expected:
    """Update M = M * exp(g) + (v - M k) * beta (x) k and return M q / sqrt(size); rows of M belong
    to elements of v.
    """
    q, k, v, g, beta, state0 = (node.wide(i) for i in range(6))
    size, heads, tokens, seqs = node.source(2).ne
    head = np.arange(heads)
    scale = constant(float(np.float32(1) / np.sqrt(np.float32(size))))
    state = exact(state0)  # (seqs, heads, rows, columns)
    q, k = (np.repeat(m, seqs // len(m), axis=0) for m in (q, k))
    outs, states = [], []
    for t in range(tokens):
        key = exact(k[:, t][:, head % k.shape[2]][:, :, None, :])
        state = state * exact(g[:, t][:, :, None, :]).exp(1.0)
        dot = total(state * key, size)
        delta = (exact(v[:, t][..., None]) - dot) * exact(beta[:, t][..., None])
        state = state + delta * key
        query = exact(q[:, t][:, head % q.shape[2]][:, :, None, :])
        outs.append(total(state * query, size, keep=False) * scale)
        states.append(state)
    return reshape_result(join_results(stack_steps(outs, 1), *latest(states, node)), node)


def by_sequence(node: Node, i: int, seqs: int) -> F64:
    """Split tokens by sequence: (tokens, heads, size) -> (seqs, tokens of each, heads, size)."""
    x: F64 = node.wide(i)[0]
    return x.reshape(seqs, -1, *x.shape[1:])


@meaning("RWKV_WKV6")
def rwkv_wkv6(node: Node, _: Build) -> Expected:
    """Compute out = (first * (k (x) v) + state) r; state = state * decay + k (x) v."""
    seqs = node.source(5).ne[1]
    k, v, r = (by_sequence(node, i, seqs) for i in range(3))
    decay = by_sequence(node, 4, seqs)
    heads, size = k.shape[2:]
    first = exact(node.wide(3).reshape(heads, size)[None, :, :, None])
    state = exact(node.wide(5).reshape(seqs, heads, size, size))
    outs = []
    for t in range(k.shape[1]):
        kv = exact(k[:, t][..., None]) * exact(v[:, t][..., None, :])
        mixed = (kv * first + state) * exact(r[:, t][..., None])
        outs.append(total(mixed, size, axis=-2, keep=False))
        state = state * exact(decay[:, t][..., None]) + kv
    return reshape_result(join_results(stack_steps(outs, 1), state), node)


@meaning("GATED_LINEAR_ATTN")
def gated_linear_attn(node: Node, _: Build) -> Expected:
    """Compute state = state * gate + k (x) v; out = state q * scale."""
    seqs = node.source(4).ne[1]
    k, v, q, gate = (by_sequence(node, i, seqs) for i in range(4))
    heads, size = k.shape[2:]
    scale = constant(float(node.floats()[0]))
    state = exact(node.wide(4).reshape(seqs, heads, size, size))
    outs = []
    for t in range(k.shape[1]):
        kv = exact(k[:, t][..., None]) * exact(v[:, t][..., None, :])
        state = state * exact(gate[:, t][..., None]) + kv
        terms = state * (exact(q[:, t][..., None]) * scale)
        outs.append(total(terms, size, axis=-2, keep=False))
    return reshape_result(join_results(stack_steps(outs, 1), state), node)


@meaning("RWKV_WKV7")
def rwkv_wkv7(node: Node, _: Build) -> Expected:
    """Compute state = state * w + v (x) k + (state . a) (x) b; out = state . r."""
    seqs = node.source(6).ne[1]
    r, w, k, v, a, b = (by_sequence(node, i, seqs) for i in range(6))
    heads, size = k.shape[2:]
    state = exact(node.wide(6).reshape(seqs, heads, size, size))
    outs = []
    for t in range(k.shape[1]):
        row = [exact(m[:, t][..., None, :]) for m in (r, w, k, a, b)]
        sa = total(state * row[3], size)
        kv = exact(v[:, t][..., None]) * row[2]
        state = state * row[1] + kv + sa * row[4]
        outs.append(total(state * row[0], size, keep=False))
    return reshape_result(join_results(stack_steps(outs, 1), state), node)
