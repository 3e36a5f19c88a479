"""Sums over rows and the norms. Sums of squares are kept in double; the rest rounds to float32.

Source: ggml-cpu/ops.cpp and vec.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

import numpy as np

from engine.ops.ggml.base import F64, LARGEST, SMALLEST, Build, Expected, Node, U, meaning
from engine.ops.ggml.near import Near, constant, exact, total

TREE = 6  # roundings of a vector's lanes added as a tree, with the square


def sum_of(x: F64, build: Build) -> Near:
    """The sum of a row, rounded once from double, or in float32."""
    n = x.shape[-1]
    near = total(exact(x), n if build.plain else n * 2.0**-29)  # 2^-53 as a share of U
    return near if build.plain else near.twice()


@meaning("SUM_ROWS", "MEAN")
def row_sums(node: Node, build: Build) -> Expected:
    x = node.wide(0)
    near = sum_of(x, build)
    if node.op == "MEAN":
        near = near / constant(x.shape[-1])
    how = "in float32, in any order" if build.plain else "in double"
    return Expected(near.v, near.r + U * np.abs(near.v) + SMALLEST, f"summed {how}")


def squares(x: Near, build: Build, together: float = 1) -> Near:
    """The sum of squares of a row in double: only the squares round, or a few of them together."""
    terms = Near(x.v * x.v, 2 * np.abs(x.v) * x.r + x.r * x.r)
    if build.plain:
        return total(terms, x.v.shape[-1] + 1)
    return total(terms, together).twice()


def in_range(near: Near, squared: Near) -> Near:
    """Without a limit where the squares are beyond float32: one engine overflows, another not."""
    beyond = np.isfinite(squared.v) & (squared.v > LARGEST)
    return Near(near.v, np.where(beyond, np.inf, near.r))


def how_summed(build: Build) -> str:
    return "squares summed in float32" if build.plain else "squares in float32, their sum in double"


def mean_of(x: Near, n: int) -> Near:
    return x / constant(n)


@meaning("RMS_NORM")
def rms_norm(node: Node, build: Build) -> Expected:
    eps = float(node.floats()[0])
    x = exact(node.wide(0))
    squared = squares(x, build)
    mean = mean_of(squared, x.v.shape[-1])
    scale = constant(1.0) / (mean + constant(eps)).sqrt()
    return in_range(x * scale, squared).expected(how_summed(build))


@meaning("L2_NORM")
def l2_norm(node: Node, build: Build) -> Expected:
    eps = float(node.floats()[0])
    x = exact(node.wide(0))
    squared = squares(x, build)
    root = squared.sqrt()
    scale = constant(1.0) / Near(np.maximum(root.v, eps), root.r)
    return in_range(x * scale, squared).expected(how_summed(build))


def centred(x: F64, eps: float, build: Build) -> Near:
    """A row with mean zero and variance one."""
    n = x.shape[-1]
    off = exact(x) - mean_of(sum_of(x, build), n)
    squared = squares(off, build, TREE)
    variance = mean_of(squared, n)
    return in_range(off * (constant(1.0) / (variance + constant(eps)).sqrt()), squared)


@meaning("NORM")
def norm(node: Node, build: Build) -> Expected:
    near = centred(node.wide(0), float(node.floats()[0]), build)
    if build.plain:
        return near.expected("mean and squares summed in float32")
    return near.expected("mean in double, squares of a vector summed in float32")


@meaning("GROUP_NORM")
def group_norm(node: Node, build: Build) -> Expected:
    """Groups of channels (ne2), each with all their rows; the last group may be smaller."""
    x = node.wide(0)
    groups, eps = int(node.params[0]), float(node.floats()[1])
    each = -(-x.shape[1] // groups)
    value, allowed = np.empty(x.shape), np.empty(x.shape)
    for start in range(0, x.shape[1], each):
        part = slice(start, start + each)
        flat = x[:, part].reshape(len(x), -1)
        near = centred(flat, eps, build)
        value[:, part] = near.v.reshape(x[:, part].shape)
        allowed[:, part] = np.broadcast_to(near.r, flat.shape).reshape(x[:, part].shape)
    return Expected(value, allowed + U * np.abs(value) + SMALLEST, "as NORM, of a group")
