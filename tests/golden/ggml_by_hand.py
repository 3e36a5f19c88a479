"""Ops of ggml in plain float32, computed as an independent honest engine would."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.golden.ops.form import Case
from tests.golden.fused_by_hand import attend

F32 = NDArray[np.float32]
Answer = Callable[[Case], Any]
ONE = np.float32(1)


def x_of(case: Case, name: str = "x") -> F32:
    value = case.inputs[name]
    assert isinstance(value, np.ndarray)
    return value.astype(np.float32)


def summed(x: F32) -> F32:
    """Add one term after the other, the least accurate order."""
    total = np.zeros((*x.shape[:-1], 1), np.float32)
    for i in range(x.shape[-1]):
        total += x[..., i : i + 1]
    return total


def eps(case: Case) -> np.float32:
    return np.float32(case.params["eps"])


def rms_norm(case: Case) -> F32:
    x = x_of(case)
    return x * (ONE / np.sqrt(summed(x * x) / np.float32(x.shape[-1]) + eps(case)))


def norm(case: Case) -> F32:
    x = x_of(case)
    centred = x - summed(x) / np.float32(x.shape[-1])
    variance = summed(centred * centred) / np.float32(x.shape[-1])
    return centred / np.sqrt(variance + eps(case))


def sigmoid(x: F32) -> F32:
    return ONE / (ONE + np.exp(-x))


def gelu(x: F32) -> F32:
    inner = np.float32(np.sqrt(2 / np.pi)) * x * (ONE + np.float32(0.044715) * x * x)
    return np.float32(0.5) * x * (ONE + np.tanh(inner))


def softmax(case: Case) -> F32:
    s = x_of(case) * np.float32(case.params["scale"])
    if "mask" in case.inputs:
        s = s + x_of(case, "mask")
    top = s.max(axis=-1, keepdims=True)
    if "sinks" in case.inputs:
        top = np.maximum(top, x_of(case, "sinks").reshape(-1, 1, 1))
    powers = np.exp(s - top)
    total = summed(powers)
    if "sinks" in case.inputs:
        total = total + np.exp(x_of(case, "sinks").reshape(-1, 1, 1) - top)
    return (powers / total).reshape(case.shape)


def rope(case: Case, *, halves: bool | None = None) -> F32:
    """Rotate by angles computed as float32 powers; pairs are adjacent or half a row apart."""
    x, n = x_of(case).copy(), int(case.params["n_dims"])
    at = x_of(case, "positions").reshape(-1, x.shape[0])[0]
    step = np.float32(case.params["freq_base"]) ** (-np.arange(0, n, 2, dtype=np.float32) / n)
    angle = (at[:, None] * step.astype(np.float32) * np.float32(case.params["freq_scale"]))[:, None]
    cos, sin = (f(angle) * np.float32(case.params["attn_factor"]) for f in (np.cos, np.sin))
    if (case.params["mode"] == 2) if halves is None else halves:
        first, second = slice(0, n // 2), slice(n // 2, n)
    else:
        first, second = slice(0, n, 2), slice(1, n, 2)
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first], x[..., second] = a * cos - b * sin, a * sin + b * cos
    return x


def product(case: Case) -> F32:
    a, b = x_of(case, "a"), x_of(case, "b")
    a = np.repeat(a, len(b) // len(a), axis=0) if a.ndim == 3 else a
    return summed(a[..., None, :, :] * b[..., :, None, :])[..., 0]


def softplus(case: Case) -> F32:
    x = x_of(case)
    return np.where(x > 20, x, np.log1p(np.exp(x)))


def l2_norm(case: Case) -> F32:
    x = x_of(case)
    return x / np.maximum(np.sqrt(summed(x * x)), eps(case))


def gate_and_up(case: Case) -> tuple[F32, F32]:
    if "up" in case.inputs:
        return x_of(case, "gate"), x_of(case, "up")
    left, right = np.split(x_of(case, "gate"), 2, axis=-1)
    return (right, left) if case.params["swapped"] else (left, right)


def gated(function: Callable[[F32], F32]) -> Answer:
    def answer(case: Case) -> F32:
        gate, up = gate_and_up(case)
        return function(gate) * up

    return answer


def chosen(case: Case) -> F32:
    """Multiply by the matrix of the chosen expert."""
    ids, x, experts = case.inputs["ids"], x_of(case), x_of(case, "experts")
    assert isinstance(ids, np.ndarray)
    rows = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
    return summed(experts[ids] * rows[:, :, None])[..., 0]


def attention(case: Case) -> F32:
    """Attend key by key to cells whose mask is zero, without slopes, caps and sinks."""
    q, k, v = (x_of(case, name) for name in "qkv")
    out = np.zeros(case.shape, np.float32)
    mask = x_of(case, "mask") if "mask" in case.inputs else np.zeros((q.shape[1], k.shape[1]))
    for h, t in np.ndindex(q.shape[:2]):
        kv, seen = h // (len(q) // len(k)), mask[t] == 0
        if seen.any():
            out[t, h] = attend(q[h, t], k[kv, seen], v[kv, seen], -1, case.params["scale"])  # type: ignore[arg-type]
    return out


def convolution(case: Case) -> F32:
    x, kernel = x_of(case), x_of(case, "kernel")
    tokens = x.shape[-1] - kernel.shape[-1] + 1
    each = [summed(x[..., t : t + kernel.shape[-1]] * kernel)[..., 0] for t in range(tokens)]
    return np.stack(each, axis=1)


def scan(case: Case) -> F32:
    """Run the state-space scan, one sequence, token, head and channel after the other."""
    s, x, dt, a, b, c = (x_of(case, n) for n in ("state", "x", "dt", "a", "b", "c"))
    ids, ys = case.inputs["ids"], np.zeros(x.shape, np.float32)
    assert isinstance(ids, np.ndarray)
    state, kept = s[ids].copy(), []
    for t in range(x.shape[1]):
        step = np.where(dt[:, t] > 20, dt[:, t], np.log1p(np.exp(dt[:, t])))
        for q, h in np.ndindex(step.shape):
            g = h // (x.shape[2] // b.shape[2])
            for i in range(x.shape[3]):
                old = state[q, h, i] * np.exp(step[q, h] * a[h])
                state[q, h, i] = old + b[q, t, g] * (x[q, t, h, i] * step[q, h])
                ys[q, t, h, i] = summed(state[q, h, i] * c[q, t, g])[0]
        kept.append(state.copy())
    newest = kept[::-1][: int(case.params["snapshots"])]
    return np.concatenate([ys.reshape(-1), *(s.reshape(-1) for s in newest)])


HONEST: dict[str, tuple[Answer, str]] = {  # with a pattern of the cases that it does not support
    "RMS_NORM": (rms_norm, "none"),
    "NORM": (norm, "none"),
    "SUM_ROWS": (lambda c: summed(x_of(c)), "none"),
    "SIGMOID": (lambda c: sigmoid(x_of(c)), "none"),
    "SILU": (lambda c: x_of(c) * sigmoid(x_of(c)), "none"),
    "GELU": (lambda c: gelu(x_of(c)), "none"),
    "SOFT_MAX": (softmax, "alibi"),
    "ROPE": (rope, "yarn factors sections middle"),
    "L2_NORM": (l2_norm, "none"),
    "GEGLU": (gated(gelu), "none"),
    "SWIGLU": (gated(lambda x: x * sigmoid(x)), "none"),
    "SOFTPLUS": (softplus, "none"),
    "TANH": (lambda c: np.tanh(x_of(c)), "none"),
    "EXP": (lambda c: np.exp(x_of(c)), "none"),
    "MUL_MAT": (product, "q8_0 q4_0 q4_k q6_k iq4_nl"),
    "MUL_MAT_ID": (chosen, "q8_0 q4_k"),
    "FLASH_ATTN_EXT": (attention, "alibi soft-cap sinks"),
    "SSM_CONV": (convolution, "none"),
    "SSM_SCAN": (scan, "none"),
}
