"""Sums over rows, and norms without their weights.

Source: ggml-cpu/ops.cpp and vec.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

import numpy as np

from lockstep.engine.node import Node
from lockstep.engine.ops import norms
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import meaning
from lockstep.engine.ops.near import SMALLEST, Expected, Near, U, constant, exact, expected_of, near


@meaning("SUM_ROWS", "MEAN")
def row_sums(node: Node, build: Build) -> Expected:
    x = node.wide(0)
    found = near(norms.sum_of(exact(x), build))
    if node.op == "MEAN":
        found = found / constant(x.shape[-1])
    how = "in float32, in any order" if build.plain else "in double"
    return Expected(found.v, found.r + U * np.abs(found.v) + SMALLEST, f"summed {how}")


@meaning("RMS_NORM")
def rms_norm(node: Node, build: Build) -> Expected:
    x = build.number(node.wide(0))
    found = norms.rms_normed(x, None, float(node.floats()[0]), build)
    return expected_of(found, norms.how_summed(build))


@meaning("L2_NORM")
def l2_norm(node: Node, build: Build) -> Expected:
    x = exact(node.wide(0))
    squared = near(norms.squares(x, build))
    root = squared.sqrt()
    scale = constant(1.0) / Near(np.maximum(root.v, float(node.floats()[0])), root.r)
    return near(norms.in_range(x * scale, squared, build)).expect(norms.how_summed(build))


@meaning("NORM")
def norm(node: Node, build: Build) -> Expected:
    found = near(norms.centre_row(exact(node.wide(0)), float(node.floats()[0]), build))
    if build.plain:
        return found.expect("mean and squares summed in float32")
    return found.expect("mean in double, squares of a vector summed in float32")


@meaning("GROUP_NORM")
def group_norm(node: Node, build: Build) -> Expected:
    """Normalise over groups of channels (ne2), each with all its rows; the last group may be
    smaller.
    """
    x = node.wide(0)
    groups, eps = int(node.params[0]), float(node.floats()[1])
    each = -(-x.shape[1] // groups)
    value, allowed = np.empty(x.shape), np.empty(x.shape)
    for start in range(0, x.shape[1], each):
        part = slice(start, start + each)
        flat = x[:, part].reshape(len(x), -1)
        found = near(norms.centre_row(exact(flat), eps, build))
        value[:, part] = found.v.reshape(x[:, part].shape)
        allowed[:, part] = np.broadcast_to(found.r, flat.shape).reshape(x[:, part].shape)
    return Expected(value, allowed + U * np.abs(value) + SMALLEST, "as NORM, of a group")
