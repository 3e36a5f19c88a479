"""Norms with their weights, and those that take the residual stream along."""

from engine.ops.fused.base import Call, Result, operation
from engine.ops.ggml.base import ANY_ENGINE
from engine.ops.ggml.near import Near, constant
from engine.ops.ggml.sums import centred, mean_of, squares

REASON = "sums in any order"


def rms_normed(x: Near, weight: Near, eps: float) -> Near:
    """Each row of x to unit mean square, times the weight."""
    mean = mean_of(squares(x, ANY_ENGINE), x.v.shape[-1])
    return x * (constant(1.0) / (mean + constant(eps)).sqrt()) * weight


@operation("weighted_rms_norm")
def weighted_rms_norm(call: Call) -> dict[str, Result]:
    near = rms_normed(call.exact("x"), call.exact("weight"), call.real("eps"))
    return {"y": near.expected(REASON)}


@operation("affine_layer_norm")
def affine_layer_norm(call: Call) -> dict[str, Result]:
    """((x - mean) / sqrt(variance + eps)) * gamma + beta"""
    near = centred(call["x"], call.real("eps"), ANY_ENGINE)
    return {"y": (near * call.exact("gamma") + call.exact("beta")).expected(REASON)}


@operation("fused_add_rms_norm")
def fused_add_rms_norm(call: Call) -> dict[str, Result]:
    """residual + x goes on, and its norm besides."""
    residual = call.exact("residual") + call.exact("x")
    near = rms_normed(residual, call.exact("weight"), call.real("eps"))
    return {"residual": residual.expected("one sum"), "y": near.expected(REASON)}
