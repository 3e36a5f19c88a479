"""Norms with their weights, and norms that also add the residual."""

from lockstep.engine.ops import norms
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.fused.base import Call, Result, operation
from lockstep.engine.ops.near import Near, near

REASON = "sums in any order"


def rms_normed(x: Near, weight: Near, eps: float) -> Near:
    """Scale each row of x to unit mean square, then multiply by the weight."""
    return near(norms.rms_normed(x, weight, eps, ANY_ENGINE))


@operation("weighted_rms_norm")
def weighted_rms_norm(call: Call) -> dict[str, Result]:
    found = rms_normed(call.exact("x"), call.exact("weight"), call.real("eps"))
    return {"y": found.expect(REASON)}


@operation("affine_layer_norm")
def affine_layer_norm(call: Call) -> dict[str, Result]:
    """Return ((x - mean) / sqrt(variance + eps)) * gamma + beta."""
    found = near(norms.centre_row(call.exact("x"), call.real("eps"), ANY_ENGINE))
    return {"y": (found * call.exact("gamma") + call.exact("beta")).expect(REASON)}


@operation("fused_add_rms_norm")
def fused_add_rms_norm(call: Call) -> dict[str, Result]:
    """Return residual + x, and its norm."""
    residual = call.exact("residual") + call.exact("x")
    found = rms_normed(residual, call.exact("weight"), call.real("eps"))
    return {"residual": residual.expect("one sum"), "y": found.expect(REASON)}
