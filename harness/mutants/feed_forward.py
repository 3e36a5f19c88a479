"""Mistakes in feed-forward networks: their activation functions and branches."""

from typing import Any

import numpy as np

from lockstep.engine.ops import functions
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

NOISE = "noise from the first token on"


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def single(x: Any) -> F32:
    found: F32 = x.astype(np.float32)
    return found


def tanh_gelu(x: F32, cubed: float) -> F32:
    wide = x.astype(np.float64)
    return single(0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + cubed * wide**3))))


def oai(
    gate: F32,
    up: F32,
    *,
    alpha: float = 1.702,
    low: float = -np.inf,
    up_low: float = -7,
    more: float = 1,
) -> F32:
    x, y = np.clip(gate, low, 7).astype(np.float64), np.clip(up, up_low, 7).astype(np.float64)
    return single(x * sigmoid(alpha * x) * (y + more))


def rough_exp(x: Any) -> Any:
    """Return exp approximated by Schraudolph's method on the bits of a float, within three per
    cent."""
    bits = np.clip(x.astype(np.float64) * 12102203.0 + 1064866805.0, 0, 2**31 - 1)
    return bits.astype(np.int32).view(np.float32).astype(np.float64)


class WrongActivation(Mistake):
    group = "activations"
    site = "ffn_swiglu"


WrongActivation.add_fault(
    "gate-and-up-exchanged",
    "SiLU is applied to the other branch",
    NOISE,
    swiglu=lambda self, right, gate, up: right(up, gate),
)
WrongActivation.add_fault(
    "gelu-for-silu",
    "GELU is used, but the model has SiLU",
    "text is a little worse",
    swiglu=lambda self, right, gate, up: self.loaded.ops.geglu(gate, up),
)
WrongActivation.add_fault(
    "relu-for-silu",
    "ReLU is used, but the model has SiLU",
    "text is worse",
    swiglu=lambda self, right, gate, up: np.maximum(gate, 0) * up,
)
WrongActivation.add_fault(
    "sigmoid-for-silu",
    "only the sigmoid of the gate, not multiplied by the gate",
    NOISE,
    swiglu=lambda self, right, gate, up: single(sigmoid(gate) * up),
)
WrongActivation.add_fault(
    "silu-of-product",
    "SiLU is applied to the product of both branches",
    NOISE,
    swiglu=lambda self, right, gate, up: single(sigmoid(gate * up) * (gate * up)),
)
WrongActivation.add_fault(
    "silu-by-rough-exp",
    "an exponential that is off by up to three per cent",
    "text is a little worse",
    swiglu=lambda self, right, gate, up: single(gate / (1 + rough_exp(-gate)) * up),
)
WrongActivation.add_fault(
    "silu-in-half",
    "SiLU and its product in half precision",
    "no effect that a reader sees, until values pass 65504",
    swiglu=lambda self, right, gate, up: single(
        single(sigmoid(gate) * gate).astype(np.float16) * up.astype(np.float16)
    ),
)
WrongActivation.add_fault(
    "silu-clamped",
    "the gate is clamped, but the model has no clamp",
    "text is worse",
    swiglu=lambda self, right, gate, up: right(np.clip(gate, -1, 1), up),
)
WrongActivation.add_fault(
    "silu-clamped-at-seven",
    "the gate is clamped at 7, as gpt-oss's is",
    "no effect that a reader sees: few gates are as large",
    swiglu=lambda self, right, gate, up: right(np.clip(gate, None, 7), up),
)
WrongActivation.add_fault(
    "gelu-by-erf",
    "erf GELU is used, but the model has tanh GELU",
    "no effect that a reader sees: off by up to 5e-4",
    shows_on="arch:gpt2",
    site="ffn_gelu",
    gelu=lambda self, right, x: single(
        0.5 * x * (1 + functions.erf(x.astype(np.float64) / np.sqrt(2)))
    ),
)
WrongActivation.add_fault(
    "gelu-quick",
    "the quick GELU, computed by a sigmoid, is used",
    "text is a little worse",
    shows_on="arch:gpt2",
    site="ffn_gelu",
    gelu=lambda self, right, x: single(x * sigmoid(1.702 * x)),
)
WrongActivation.add_fault(
    "gelu-constant",
    "a zero too many in the constant of GELU",
    "text is a little worse",
    shows_on="arch:gpt2",
    site="ffn_gelu",
    gelu=lambda self, right, x: tanh_gelu(x, 0.0044715),
)
WrongActivation.add_fault(
    "gelu-missing",
    "the activation between the two matrices is left out",
    NOISE,
    shows_on="arch:gpt2",
    site="ffn_gelu",
    gelu=lambda self, right, x: x,
)
WrongActivation.add_fault(
    "silu-for-gelu",
    "SiLU is used, but Gemma has GELU",
    "text is worse",
    shows_on="arch:gemma3",
    site="ffn_geglu",
    geglu=lambda self, right, gate, up: self.loaded.ops.swiglu(gate, up),
)
WrongActivation.add_fault(
    "geglu-exchanged",
    "GELU is applied to the other branch",
    NOISE,
    shows_on="arch:gemma2",
    site="ffn_geglu",
    geglu=lambda self, right, gate, up: right(up, gate),
)
WrongActivation.add_fault(
    "swiglu-oai-without-one",
    "the 1 is not added to gpt-oss's linear branch",
    NOISE,
    shows_on="arch:gpt-oss",
    site="ffn_moe_swiglu_oai",
    swiglu_oai=lambda self, right, gate, up: oai(gate, up, more=0),
)
WrongActivation.add_fault(
    "swiglu-oai-alpha",
    "gpt-oss gets plain SiLU, without the factor 1.702",
    "text is worse",
    shows_on="arch:gpt-oss",
    site="ffn_moe_swiglu_oai",
    swiglu_oai=lambda self, right, gate, up: oai(gate, up, alpha=1),
)
WrongActivation.add_fault(
    "swiglu-oai-clamped-below",
    "gpt-oss's gate is clamped below as well",
    "text is worse",
    shows_on="arch:gpt-oss",
    site="ffn_moe_swiglu_oai",
    swiglu_oai=lambda self, right, gate, up: oai(gate, up, low=-0.5),
)
WrongActivation.add_fault(
    "swiglu-oai-clamped-above-only",
    "gpt-oss's linear branch is clamped above, and not below",
    "no effect that a reader sees: few numbers are as large",
    shows_on="arch:gpt-oss",
    site="ffn_moe_swiglu_oai",
    swiglu_oai=lambda self, right, gate, up: oai(gate, up, up_low=-np.inf),
)
WrongActivation.add_fault(
    "gate-up-halves-exchanged",
    "the halves of the matrix that holds gate and up are exchanged",
    NOISE,
    shows_on="arch:phi3",
    swiglu=lambda self, right, gate, up: right(up, gate),
)


class HalvesInterleaved(WrongActivation, name="mutant:gate-up-interleaved"):
    mistake = "gate and up are read from alternate rows, but the matrix stores gate first"
    effect = NOISE
    shows_on = "arch:phi3"

    def swiglu(self, right: Op, gate: F32, up: F32) -> F32:
        both = np.concatenate([gate, up], axis=-1)
        return right(both[..., ::2], both[..., 1::2])


WrongActivation.add_fault(
    "silu-without-gate",
    "the SiLU of the gate is not multiplied by the other branch",
    NOISE,
    first_of_all=True,
    swiglu=lambda self, right, gate, up: right(gate, np.ones_like(up)),
)
