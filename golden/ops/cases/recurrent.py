"""Cases of ops that carry a state from token to token, and of hyper-connections."""

from collections.abc import Iterator

import numpy as np

from lockstep.engine.ops import functions
from lockstep.golden.ops.form import Array, Case, SeededInputs, cases


@cases("SSM_CONV")
def convolution(op: str, draw: SeededInputs) -> Iterator[Case]:
    """Yield cases of convolutions. x: (sequences, channels, d_conv - 1 + tokens)."""
    for name, seqs, tokens in (("one-token", 1, 1), ("several", 2, 5)):
        inputs = {"x": draw(f"{name}-x", seqs, 6, 3 + tokens), "kernel": draw(name, 6, 4)}
        yield Case(id=name, inputs=inputs, shape=(seqs, tokens, 6))


@cases("SSM_SCAN")
def scan(op: str, draw: SeededInputs) -> Iterator[Case]:
    """Yield cases of scans: Mamba-1 has a decay for each state, Mamba-2 one for each head."""
    for name, dim, heads, states, decays, keep in (
        ("mamba-1", 1, 6, 8, 8, 1),
        ("mamba-2", 4, 4, 8, 1, 1),
        ("snapshots", 4, 4, 8, 1, 3),
    ):
        for tokens, seqs in ((1, 1), (5, 2)) if keep == 1 else ((5, 2),):
            tag = f"{name}-{tokens}"
            inputs = {
                "state": draw(f"{tag}-state", seqs + 1, heads, dim, states),
                "x": draw(f"{tag}-x", seqs, tokens, heads, dim),
                "dt": draw(f"{tag}-dt", seqs, tokens, heads),
                "a": -np.abs(draw(f"{tag}-a", heads, decays)),
                "b": draw(f"{tag}-b", seqs, tokens, 2, states),
                "c": draw(f"{tag}-c", seqs, tokens, 2, states),
                "ids": np.arange(seqs, 0, -1, dtype=np.int32),
            }
            if tokens > 1:  # beyond 20, softplus returns its argument
                inputs["dt"][0, :2, 0] = [25.0, -60.0]
            size = seqs * heads * dim * (tokens + keep * states)
            yield Case(id=tag, inputs=inputs, params={"snapshots": keep}, shape=(size,))


@cases("GATED_DELTA_NET")
def delta(op: str, draw: SeededInputs) -> Iterator[Case]:
    size = 8
    for name, tokens, seqs, gates, keep in (
        ("gates-of-heads", 3, 2, 1, 1),
        ("gates-of-rows", 2, 1, size, 1),
        ("snapshots", 3, 2, 1, 2),
    ):
        heads, keys = 4, 2
        inputs = {
            "q": draw(f"{name}-q", seqs, tokens, keys, size),
            "k": draw(f"{name}-k", seqs, tokens, keys, size, size=0.3),
            "v": draw(f"{name}-v", seqs, tokens, heads, size),
            "g": -np.abs(draw(f"{name}-g", seqs, tokens, heads, gates)),
            "beta": np.abs(draw(f"{name}-beta", seqs, tokens, heads, 1, size=0.3)),
            "state": draw(f"{name}-state", seqs, heads, size, size),
        }
        shape = (tokens * seqs + keep * size * seqs, heads * size)
        yield Case(id=name, inputs=inputs, params={"snapshots": keep}, shape=shape)


def rows(
    draw: SeededInputs, tag: str, names: str, tokens: int, heads: int, size: int
) -> dict[str, Array]:
    return {name: draw(f"{tag}-{name}", tokens, heads, size, size=0.4) for name in names}


@cases("RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN")
def linear_attention(op: str, draw: SeededInputs) -> Iterator[Case]:
    """Yield cases with the same number of tokens for each sequence, one sequence after the other.
    Heads have 64 elements, as in models."""
    heads, size = 2, 64
    names = {"RWKV_WKV6": "kvr", "RWKV_WKV7": "rkvab", "GATED_LINEAR_ATTN": "kvq"}[op]
    for tag, tokens, seqs in (("one-token", 1, 1), ("several", 4, 2)):
        inputs = rows(draw, tag, names, tokens, heads, size)
        drawn = draw(f"{tag}-decay", tokens, heads, size)
        decay = functions.exp(-np.abs(drawn)).astype(np.float32)
        inputs[{"RWKV_WKV6": "decay", "RWKV_WKV7": "w"}.get(op, "gate")] = decay
        if op == "RWKV_WKV6":
            inputs["first"] = draw(f"{tag}-first", heads, size)
        inputs["state"] = draw(f"{tag}-state", seqs, heads * size * size, size=0.2)
        shape = (tokens + seqs * size, heads * size)
        params = {"scale": 0.125} if op == "GATED_LINEAR_ATTN" else {}
        yield Case(id=tag, inputs=inputs, params=params, shape=shape)


@cases("DSV4_HC_COMB")
def mixing(op: str, draw: SeededInputs) -> Iterator[Case]:
    for rounds in (1, 4):
        inputs = {
            "mixes": draw(f"{rounds}-mixes", 3, 24),
            "scale": np.array([0.5, 0.7, 0.9], np.float32),
            "base": draw(f"{rounds}-base", 24),
        }
        params = {"eps": 1e-6, "rounds": rounds}
        yield Case(id=f"rounds-{rounds}", inputs=inputs, params=params, shape=(3, 4, 4))


@cases("DSV4_HC_PRE")
def hyper_pre_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = draw("x", 3, 4, 16)
    inputs = {"x": x, "weights": draw("weights", 3, 4)}
    params = {"scale": 1.0, "gated": 0}
    yield Case(id="a-weight-for-each-stream", inputs=inputs, params=params, shape=(3, 16))
    inputs, params = {"x": x, "weights": draw("gates", 3, 4, 16)}, {"scale": 0.5, "gated": 1}
    yield Case(id="a-gate-for-each-element", inputs=inputs, params=params, shape=(3, 16))


@cases("DSV4_HC_POST")
def spread(op: str, draw: SeededInputs) -> Iterator[Case]:
    inputs = {
        "x": draw("x", 3, 16),
        "residual": draw("residual", 3, 4, 16),
        "post": draw("post", 3, 4),
    }
    mixed = {**inputs, "comb": draw("comb", 3, 4, 4)}
    yield Case(id="mixed", inputs=mixed, shape=(3, 4, 16))
    yield Case(id="each-stream-its-own", inputs=inputs, shape=(3, 4, 16))
