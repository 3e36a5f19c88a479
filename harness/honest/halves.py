"""Products whose factors have fewer bits than float32, or whose sums are truncated, as on graphics
cards."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.ops.reference import Bools, ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.honest.base import HonestEngine

# views with logits; lists and text do not show which factors are rounded, so they are judged like
# float32
WITH_LOGITS = ("tensors", "layers", "logits")
Round = Callable[[F32], F32]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # magnitudes of E2M1


def as_is(x: F32) -> F32:
    return x


def to_f16(x: F32) -> F32:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def keep_bits(bits: int) -> Round:
    """Return a function that rounds the mantissa to this number of bits, ties to even. The range of
    exponents remains that of float32."""
    dropped = np.uint32(23 - bits)

    def to(x: F32) -> F32:
        raw = np.ascontiguousarray(x, np.float32).view(np.uint32)
        half = (np.uint32(1) << (dropped - np.uint32(1))) - np.uint32(1)
        even = raw + half + ((raw >> dropped) & np.uint32(1))
        kept: F32 = (even >> dropped << dropped).view(np.float32)
        return kept

    return to


def to_float8(bits: int, least: int, largest: float) -> Round:
    """Return a function that rounds to an eight-bit float, ties to even. `least` is the exponent of
    its smallest normal number."""

    def to(x: F32) -> F32:
        exponents = np.maximum(np.frexp(x)[1] - 1, least) - bits
        steps = np.ldexp(np.float32(1), exponents)
        rounded: F32 = np.clip(np.rint(x / steps) * steps, -largest, largest).astype(np.float32)
        return rounded

    return to


def to_bytes(x: F32) -> F32:
    """Round each row to integers from -127 to 127, times a scale."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    with np.errstate(all="ignore"):
        return np.where(scale == 0, np.float32(0), np.rint(x / scale) * scale)


def to_fp4(size: int, scales: Callable[[F32], F32]) -> Round:
    """Return a function that rounds groups of `size` neighbouring numbers to four-bit floats with a
    shared scale."""

    def to(x: F32) -> F32:
        rest = -x.shape[-1] % size
        filled = np.pad(x, (*[(0, 0)] * (x.ndim - 1), (0, rest)))
        blocks = filled.reshape(*x.shape[:-1], filled.shape[-1] // size, size)
        scale = scales(np.abs(blocks).max(axis=-1, keepdims=True))
        with np.errstate(all="ignore"):
            share = np.where(scale == 0, 0, blocks / scale)
        near = np.abs(np.abs(share)[..., None] - E2M1).argmin(axis=-1)
        out = np.copysign(E2M1[near], share) * scale
        kept: F32 = out.reshape(filled.shape)[..., : x.shape[-1]].astype(np.float32)
        return kept

    return to


def powers_of_two(most: F32) -> F32:
    """Return the scales of MXFP4: a power of two, whose exponent is two below that of the largest
    magnitude."""
    return np.where(most == 0, 0, np.ldexp(np.float32(1), np.frexp(most)[1] - 3))


to_bf16, to_tf32 = keep_bits(7), keep_bits(10)
to_e4m3, to_e5m2 = to_float8(3, -6, 448.0), to_float8(2, -14, 57344.0)


def of_sixths(most: F32) -> F32:
    """Return the scales of NVFP4: a sixth of the largest magnitude, rounded to E4M3."""
    return to_e4m3(most / np.float32(6))


class Rounded(Mirror):
    """Ops that round the factors of each product and multiply them in float32. They compute GELU
    without a table."""

    weights: Round = staticmethod(as_is)
    inputs: Round = staticmethod(as_is)
    in_blocks: Round = staticmethod(as_is)  # activations that are multiplied with block weights
    queries: Round = staticmethod(as_is)
    keys: Round = staticmethod(as_is)
    chances: Round = staticmethod(as_is)
    cells: Round = staticmethod(as_is)

    def linear(self, x: F32, weight: Weight) -> F32:
        blocks = self.in_blocks if is_in_blocks(weight.format) else as_is
        return self.multiply(blocks(self.inputs(x)), self.weights(weight.values()).T)

    def multiply(self, a: F32, b: F32) -> F32:
        out: F32 = np.matmul(a, b)
        return out

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        keys = self.heads(self.keys(k.astype(np.float32)), q.shape[1])
        return self.multiply(self.queries(q).transpose(1, 0, 2), keys.transpose(0, 2, 1))

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        values = self.heads(self.cells(v.astype(np.float32)), len(p))
        out = self.multiply(self.chances(p), values).transpose(1, 0, 2)
        return np.ascontiguousarray(out).reshape(len(out), -1)

    def gelu(self, x: F32) -> F32:
        return ReferenceOps().gelu(x)

    def geglu(self, gate: F32, up: F32) -> F32:
        return ReferenceOps().geglu(gate, up)

    def heads(self, x: F32, n: int) -> F32:
        return np.repeat(x.transpose(1, 0, 2), n // x.shape[1], axis=0)

    def flash_attn(
        self,
        q: F32,
        k: NDArray[Any],
        v: NDArray[Any],
        scale: float,
        visible: Bools,
        cap: float = 0.0,
        sinks: F32 | None = None,
    ) -> F32:
        scores = self.kq(q, k)
        if cap:
            scores = self.soft_cap(scores * np.float32(scale), cap)
            scale = 1.0
        if sinks is None:
            p = self.soft_max(scores, scale, visible)
        else:
            p = self.soft_max_with_sinks(scores, scale, visible, sinks)
        return self.kqv(p, v)


def add_rounded(name: str, design: str, rounds: dict[str, Round], on: str = "f32") -> None:
    """Register an engine. `rounds` maps each factor to its rounding."""
    kept = {factor: staticmethod(to) for factor, to in rounds.items()}
    ops = type("RoundedOps", (Rounded,), {"__module__": __name__, **kept})
    HonestEngine.add_design(name, design, ops=ops, shows_on=on, views=WITH_LOGITS)


def all_of(to: Round) -> dict[str, Round]:
    """Return this rounding for both factors of products with weights, and for the four factors of
    attention."""
    return dict.fromkeys(("weights", "inputs", "queries", "keys", "chances", "cells"), to)


# cuBLAS and Metal multiply 16-bit tiles and add in float32
add_rounded("f16", "all factors in F16, sums in F32", all_of(to_f16))
add_rounded("bf16", "all factors in BF16, sums in F32", all_of(to_bf16))
add_rounded("tf32", "all factors in TF32, sums in F32", all_of(to_tf32))
add_rounded("weights-f16", "weights and activations in F16", {"weights": to_f16, "inputs": to_f16})
add_rounded("weights-bf16", "weights in BF16, activations as they are", {"weights": to_bf16})
# fused attention on tensor cores rounds the result of the softmax before it is multiplied with
# values
add_rounded("chances-f16", "attention weights in F16", {"chances": to_f16})
add_rounded("cache-bf16", "keys and values in BF16", {"keys": to_bf16, "cells": to_bf16})
# vLLM and TensorRT-LLM have 8-bit caches
add_rounded("cache-e4m3", "keys and values in E4M3", {"keys": to_e4m3, "cells": to_e4m3})
add_rounded("cache-e5m2", "keys and values in E5M2", {"keys": to_e5m2, "cells": to_e5m2})
# SageAttention has queries and keys in int8, and the rest in F16
add_rounded(
    "attention-int8",
    "queries and keys in bytes, attention weights and values in F16",
    {"queries": to_bytes, "keys": to_bytes, "chances": to_f16, "cells": to_f16},
)
# Blackwell's tensor cores multiply 4-bit numbers
add_rounded(
    "activations-mxfp4", "activations in MXFP4", {"in_blocks": to_fp4(32, powers_of_two)}, "q8_0"
)
add_rounded(
    "activations-nvfp4", "activations in NVFP4", {"in_blocks": to_fp4(16, of_sixths)}, "q8_0"
)


class TensorCore(Rounded):
    """Ops that add products in groups of four. The ops align the four products and the sum so far
    to the largest of these five numbers, and cut off the lower bits."""

    def multiply(self, a: F32, b: F32) -> F32:
        out = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
        for start in range(0, a.shape[-1], 4):
            some = slice(start, start + 4)
            left = a[..., :, some, None].astype(np.float64)
            terms = np.concatenate(
                [left * b[..., None, some, :], out[..., :, None, :].astype(np.float64)], axis=-2
            )
            step = np.ldexp(1.0, np.frexp(np.abs(terms).max(axis=-2, keepdims=True))[1] - 24)
            total = (np.trunc(terms / step) * step).sum(axis=-2)
            out = toward_zero(total)
        return out


def toward_zero(x: NDArray[np.float64]) -> F32:
    """Round to float32 toward zero."""
    near = x.astype(np.float32)
    return np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)


# in tensor cores from Volta on, additions inside a tile truncate
HonestEngine.add_design(
    "sums-truncated", "float32 sums of four products at a time, truncated", ops=TensorCore
)
