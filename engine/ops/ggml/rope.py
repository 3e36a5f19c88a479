"""Rotary positions: adjacent pairs or pairs half a row apart, with sections and YaRN.

ggml computes the angle of each pair from the previous pair's angle in float32, which is mirrored
here; other roundings are bounded. Source: ggml_compute_forward_rope_flt in ggml-cpu/ops.cpp of
llama-cpp-python 0.3.36.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.node import Node
from lockstep.engine.ops import functions
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import meaning
from lockstep.engine.ops.near import F64, LIBM_ULP, Expected, Near, U, exact, near, value_of
from lockstep.engine.ops.rotation import recursion, rotate

NORMAL, NEOX, MROPE, VISION, IMROPE = 0, 2, 8, 24, 40  # GGML_ROPE_TYPE_*
one = np.float32


def log(x: float) -> float:
    return float(functions.log(x))


def corrections(n_dims: int, n_ctx_orig: int, base: float, fast: float, slow: float) -> list[float]:
    """Return the pairs between which YaRN blends the two frequencies."""

    def dim(turns: float) -> float:
        where = log(n_ctx_orig / (turns * 2 * math.pi)) if n_ctx_orig > 0 else -math.inf
        return n_dims * where / (2 * log(base))

    ends = dim(fast), dim(slow)
    if not all(map(math.isfinite, ends)):
        return [0.0, 0.0]
    return [max(0.0, math.floor(ends[0])), min(n_dims - 1.0, math.ceil(ends[1]))]


def bases(node: Node, pairs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each pair, which of a token's four positions rotates the pair, and its frequency
    step.

    Both are (pairs,). In VISION mode, every section begins with step 0.
    """
    mode, sections = int(node.params[2]), [int(s) for s in node.params[11:15]]
    step = np.arange(pairs)
    if not mode & MROPE:
        return np.zeros(pairs, np.int64), step
    sector = step % sum(sections)
    if mode == IMROPE:
        which = np.full(pairs, 3)
        for rest, part in enumerate(sections[:3]):
            which[(sector % 3 == rest) & (sector < 3 * part)] = rest
        return which, step
    edges = np.cumsum(sections)[:3]
    which = np.searchsorted(edges, sector, side="right")
    return which, sector - np.r_[0, edges][which] if mode == VISION else step


def angles(node: Node, pairs: int) -> NDArray[np.float32]:
    """Return the angles as ggml's float32 recursion gives them, before factors and scaling:
    (tokens, pairs)."""
    n_dims, base = int(node.params[1]), node.floats()[5]
    ids = node.source(1).value
    assert ids is not None
    positions = ids.reshape(-1, node.ne[2]).astype(np.float32)  # (1 or 4, tokens)
    flat: NDArray[np.float32] = recursion(positions.reshape(-1), n_dims, base, pairs)
    theta = flat.reshape(len(positions), -1, pairs)
    which, at = bases(node, pairs)
    return theta[which, :, at].T


def angles_in_any_way(node: Node, pairs: int) -> tuple[F64, F64]:
    """Return the angles and their float32 error: (tokens, pairs). An engine may multiply from pair
    to pair, or compute a power.
    """
    n_dims, base = int(node.params[1]), float(node.floats()[5])
    ids = node.source(1).value
    assert ids is not None
    positions = ids.reshape(-1, node.ne[2]).astype(np.float64)
    which, at = bases(node, pairs)
    each = positions[which].T * functions.power(base, -2 * at / n_dims)
    # For each step, a power to 1 ulp and a product. Once, the rounding of the exponent times
    # log(base), and products with position, factor and scale.
    roundings = at * (2 * LIBM_ULP + 1) + log(base) + 3
    return each, np.abs(each) * roundings * U


def mixing(node: Node, pairs: int) -> tuple[F64 | None, np.float32]:
    """Return the share of each pair's angle that YaRN does not scale, and the magnitude.

    The share is None without YaRN.
    """
    scale, ext, magnitude, fast, slow = (node.floats()[i] for i in (6, 7, 8, 9, 10))
    if ext == 0:
        return None, magnitude
    low, high = corrections(
        int(node.params[1]), int(node.params[4]), float(node.floats()[5]), fast, slow
    )
    ramp = 1 - np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0, 1)
    return ramp * float(ext), magnitude * one(1 + 0.1 * log(1 / scale))


def rotations(node: Node, pairs: int, build: Build) -> tuple[Near, Near]:
    """Return cosines and sines: (tokens, 1, pairs) each."""
    scale, ext = node.floats()[6], node.floats()[7]
    mix, magnitude = mixing(node, pairs)
    theta: NDArray[Any]
    if build.plain:
        theta, wide_theta = angles_in_any_way(node, pairs)
    else:
        theta = angles(node, pairs)
        wide_theta = np.zeros(theta.shape)
    factors = node.optional(2)
    if factors is not None:
        stretch: NDArray[Any] = node.wide(2).reshape(-1)[:pairs].astype(theta.dtype)
        theta, wide_theta = theta / stretch, wide_theta / np.abs(stretch)
    turned = theta * theta.dtype.type(scale)
    slack = wide_theta * abs(float(scale))
    if mix is not None:
        turned = turned.astype(np.float64) * (1 - mix) + theta.astype(np.float64) * mix
        slack = wide_theta * max(abs(float(scale)), abs(float(ext)), 1.0)
        # rounding errors of the ramp, its complement, the products and the sum
        slack += 6 * U * (np.abs(turned) + np.abs(theta))
    wide = turned.astype(np.float64)[:, None, :]
    reach = slack[:, None, :]
    size = abs(float(magnitude))
    # errors of the function and of the factor
    off = size * (reach + (2 + (3 if ext != 0 else 1)) * U)
    return Near(functions.cos(wide) * magnitude, off), Near(functions.sin(wide) * magnitude, off)


def pair_places(node: Node) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices in a row of the first and of the second elements of all pairs."""
    n_dims, mode, start = int(node.params[1]), int(node.params[2]), int(node.params[15])
    if mode == NORMAL:
        first = start + np.arange(0, n_dims, 2)
        return first, first + 1
    if mode in (NEOX, MROPE, IMROPE):
        first = start + np.arange(n_dims // 2)
        return first, first + n_dims // 2
    if mode == VISION:  # the whole row, which has twice n_dims elements
        return np.arange(n_dims), np.arange(n_dims) + n_dims
    raise Unsupported(f"ROPE of mode {mode}")


@meaning("ROPE", "ROPE_BACK")
def rope(node: Node, build: Build) -> Expected:
    """Rotate pairs of elements. x: (ne3, tokens, heads, dim); unrotated elements are copied."""
    x = node.wide(0)
    first, second = pair_places(node)
    cos, sin = rotations(node, len(first), build)
    if node.op == "ROPE_BACK":
        sin = Near(-sin.v, sin.r)
    if not build.bounds:
        return Expected(value_of(rotate(x, cos.v, sin.v, first, second)), 0.0, "")
    found = near(rotate(exact(x), cos, sin, first, second))
    angle = "in any way" if build.plain else "by ggml's recursion"
    return found.settle(f"cosine, sine, two products and their sum; the angle {angle}")
