"""Activation functions of feed-forward networks that are wrong, and their two branches."""

from typing import Any

import numpy as np

from lockstep.engine.model import Model
from lockstep.engine.ops import functions
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.mutants.parts.changed import ops_with
from lockstep.harness.mutants.parts.mistakes import Mistake


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def single(x: Any) -> F32:
    found: F32 = x.astype(np.float32)
    return found


def tanh_gelu(x: F32, cubed: float) -> F32:
    wide = x.astype(np.float64)
    return single(0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + cubed * wide**3))))


def oai(gate: F32, up: F32, *, alpha: float = 1.702, low: float = -np.inf, more: float = 1) -> F32:
    x, y = np.clip(gate, low, 7).astype(np.float64), np.clip(up, -7, 7).astype(np.float64)
    return single(x * sigmoid(alpha * x) * (y + more))


def rough_exp(x: Any) -> Any:
    """By Schraudolph's bits of a float, within three per cent."""
    bits = np.clip(x.astype(np.float64) * 12102203.0 + 1064866805.0, 0, 2**31 - 1)
    return bits.astype(np.int32).view(np.float32).astype(np.float64)


class GateAndUpExchanged(Mutant, name="mutant:gate-and-up-exchanged"):
    ops = ops_with(swiglu=lambda ops, gate, up: Mirror.swiglu(ops, up, gate))
    mistake = "SiLU of the other branch"
    group = "activations"
    effect = "noise from the first token on"
    site = "ffn_swiglu"


class GeluForSilu(Mutant, name="mutant:gelu-for-silu"):
    ops = ops_with(swiglu=lambda ops, gate, up: Mirror.geglu(ops, gate, up))
    mistake = "GELU where the model has SiLU"
    group = "activations"
    effect = "text is a little worse"
    site = "ffn_swiglu"


class ReluForSilu(Mutant, name="mutant:relu-for-silu"):
    ops = ops_with(swiglu=lambda ops, gate, up: np.maximum(gate, 0) * up)
    mistake = "ReLU where the model has SiLU"
    group = "activations"
    effect = "text is worse"
    site = "ffn_swiglu"


class SigmoidForSilu(Mutant, name="mutant:sigmoid-for-silu"):
    ops = ops_with(swiglu=lambda ops, gate, up: single(sigmoid(gate) * up))
    mistake = "the sigmoid of the gate without the gate"
    group = "activations"
    effect = "noise from the first token on"
    site = "ffn_swiglu"


class SiluOfProduct(Mutant, name="mutant:silu-of-product"):
    ops = ops_with(swiglu=lambda ops, gate, up: single(sigmoid(gate * up) * (gate * up)))
    mistake = "SiLU of the product of both branches"
    group = "activations"
    effect = "noise from the first token on"
    site = "ffn_swiglu"


class SiluRough(Mutant, name="mutant:silu-by-rough-exp"):
    ops = ops_with(swiglu=lambda ops, gate, up: single(gate / (1 + rough_exp(-gate)) * up))
    mistake = "an exponential that is off by up to three per cent"
    group = "activations"
    effect = "text is a little worse"
    site = "ffn_swiglu"


class SiluInHalf(Mutant, name="mutant:silu-in-half"):
    ops = ops_with(
        swiglu=lambda ops, gate, up: single(
            single(sigmoid(gate) * gate).astype(np.float16) * up.astype(np.float16)
        )
    )
    mistake = "SiLU and its product in half precision"
    group = "activations"
    effect = "nothing that a reader sees, until values pass 65504"
    site = "ffn_swiglu"


class SiluClamped(Mutant, name="mutant:silu-clamped"):
    ops = ops_with(swiglu=lambda ops, gate, up: Mirror.swiglu(ops, np.clip(gate, -1, 1), up))
    mistake = "the gate is clamped where the model has no clamp"
    group = "activations"
    effect = "text is worse"
    site = "ffn_swiglu"


class GeluByErf(Mutant, name="mutant:gelu-by-erf"):
    ops = ops_with(
        gelu=lambda ops, x: single(0.5 * x * (1 + functions.erf(x.astype(np.float64) / np.sqrt(2))))
    )
    mistake = "GELU by erf where the model has the formula with tanh"
    group = "activations"
    effect = "nothing that a reader sees: off by up to 5e-4"
    shows_on = "arch:gpt2"
    site = "ffn_gelu"


class GeluQuick(Mutant, name="mutant:gelu-quick"):
    ops = ops_with(gelu=lambda ops, x: single(x * sigmoid(1.702 * x)))
    mistake = "the quick GELU, by a sigmoid"
    group = "activations"
    effect = "text is a little worse"
    shows_on = "arch:gpt2"
    site = "ffn_gelu"


class GeluConstant(Mutant, name="mutant:gelu-constant"):
    ops = ops_with(gelu=lambda ops, x: tanh_gelu(x, 0.0044715))
    mistake = "a zero too many in the constant of GELU"
    group = "activations"
    effect = "text is a little worse"
    shows_on = "arch:gpt2"
    site = "ffn_gelu"


class GeluMissing(Mutant, name="mutant:gelu-missing"):
    ops = ops_with(gelu=lambda ops, x: x)
    mistake = "no activation between the two matrices"
    group = "activations"
    effect = "noise from the first token on"
    shows_on = "arch:gpt2"
    site = "ffn_gelu"


class SiluForGelu(Mutant, name="mutant:silu-for-gelu"):
    ops = ops_with(geglu=lambda ops, gate, up: Mirror.swiglu(ops, gate, up))
    mistake = "SiLU where Gemma has GELU"
    group = "activations"
    effect = "text is worse"
    shows_on = "arch:gemma3"
    site = "ffn_geglu"


class GegluExchanged(Mutant, name="mutant:geglu-exchanged"):
    ops = ops_with(geglu=lambda ops, gate, up: Mirror.geglu(ops, up, gate))
    mistake = "GELU of the other branch"
    group = "activations"
    effect = "noise from the first token on"
    shows_on = "arch:gemma2"
    site = "ffn_geglu"


class OaiWithoutOne(Mutant, name="mutant:swiglu-oai-without-one"):
    ops = ops_with(swiglu_oai=lambda ops, gate, up: oai(gate, up, more=0))
    mistake = "the 1 is not added to gpt-oss's linear branch"
    group = "activations"
    effect = "noise from the first token on"
    shows_on = "arch:gpt-oss"
    site = "ffn_moe_swiglu_oai"


class OaiAlpha(Mutant, name="mutant:swiglu-oai-alpha"):
    ops = ops_with(swiglu_oai=lambda ops, gate, up: oai(gate, up, alpha=1))
    mistake = "plain SiLU in gpt-oss, without 1.702"
    group = "activations"
    effect = "text is worse"
    shows_on = "arch:gpt-oss"
    site = "ffn_moe_swiglu_oai"


class OaiClampedBelow(Mutant, name="mutant:swiglu-oai-clamped-below"):
    ops = ops_with(swiglu_oai=lambda ops, gate, up: oai(gate, up, low=-0.5))
    mistake = "gpt-oss's gate is clamped below as well"
    group = "activations"
    effect = "text is worse"
    shows_on = "arch:gpt-oss"
    site = "ffn_moe_swiglu_oai"


class HalvesExchanged(Mistake, name="mutant:gate-up-halves-exchanged"):
    mistake = "the halves of the matrix that holds gate and up are exchanged"
    group = "activations"
    effect = "noise from the first token on"
    shows_on = "arch:phi3"
    site = "ffn_swiglu"

    def change(self, model: Model) -> None:
        right = model.ops.swiglu
        model.ops.swiglu = lambda gate, up: right(up, gate)  # type: ignore[method-assign]


class HalvesInterleaved(Mistake, name="mutant:gate-up-interleaved"):
    mistake = "gate and up are taken row by row from the matrix that holds one behind the other"
    group = "activations"
    effect = "noise from the first token on"
    shows_on = "arch:phi3"
    site = "ffn_swiglu"

    def change(self, model: Model) -> None:
        right = model.ops.swiglu

        def swiglu(gate: F32, up: F32) -> F32:
            both = np.concatenate([gate, up], axis=-1)
            return right(both[..., ::2], both[..., 1::2])

        model.ops.swiglu = swiglu  # type: ignore[method-assign]
