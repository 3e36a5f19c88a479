"""Matrix products as ggml computes them: the type of the first factor decides how the second is
converted.

Source: ggml_compute_forward_mul_mat and _mul_mat_id in ggml-cpu/ggml-cpu.c, and
ggml_compute_forward_lightning_indexer in ops.cpp, of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import Converted
from lockstep.engine.errors import Unsupported
from lockstep.engine.node import PLAIN, Node, Operand
from lockstep.engine.ops import products
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import meaning, single
from lockstep.engine.ops.near import F64, Expected, Near, U, exact, finite, near, total
from lockstep.engine.ops.roundings import product_roundings
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight

AT_ONCE = 1 << 19  # numbers of a result; a few arrays of four megabytes


def matrix(operand: Operand, i3: int, i2: int) -> Weight:
    """Return one matrix of a stack as a weight: (rows, columns)."""
    assert operand.value is not None
    raw = np.ascontiguousarray(operand.value[i3, i2]).reshape(-1).view(np.uint8)
    shape = (operand.ne[1], operand.ne[0])
    return Weight(operand.name, WeightFormat.member(operand.type), shape, raw)


def multiply_exactly(x: F32 | F64, weight: Weight, build: Build) -> Near:
    """Multiply x (tokens, columns) by the weight without any rounding -> (tokens, rows)."""
    if weight.format.name == "F64":  # decoding would round to float32
        right = weight.raw.view(np.float64).reshape(weight.shape).T
        return near(products.of_floats(x.astype(np.float64), right, build))
    return of_converted(products.convert_activations(x, weight, build), weight, build, x.dtype)


def of_converted(acts: Converted, weight: Weight, build: Build, dtype: Any) -> Near:
    if is_sized(build):
        return products.bounded_product(acts.values, acts.sums, weight, build, dtype)
    alone = replace(build, bounds=False)
    value, _ = products.added_up(acts.values, acts.sums, weight, alone, dtype)
    return exact(value.astype(np.float64, copy=False))


def in_parts(
    x: F32 | F64, weight: Weight, build: Build, name: str = "weights"
) -> Iterator[tuple[slice, Near]]:
    """Yield the product by ranges of rows, so that a large vocabulary stays in the cache.

    name: the weight's name in `Factors`. If a block of a token holds a NaN or an infinity, the
    token has no limit. x86 converts such a value to the step -128, whose sign ggml's AVX2 code
    cannot change; C does not define the step.
    """
    if weight.format.name == "F64":  # a cache in a run without rounding
        yield slice(None), multiply_exactly(x, rounded_left(weight, name, build), build)
        return
    acts = products.convert_activations(x, weight, build)
    blocks = is_sized(build) and not build.plain and products.is_in_blocks(weight.format)
    free = blocks & ~np.isfinite(x).all(axis=-1, keepdims=True)
    for rows in weight.runs(max(1, AT_ONCE // max(1, len(x))) * weight.shape[1]):
        some = rounded_left(weight.between(rows), name, build)
        found = of_converted(acts, some, build, x.dtype)
        yield rows, replace(found, r=np.where(free, np.inf, found.r)) if free.any() else found


def is_sized(build: Build) -> bool:
    """Return True if the build computes sizes and bounds of products."""
    return build.sizes and build.bounds


def reason_of(operand: Operand, build: Build) -> str:
    kind = WeightFormat.member(operand.type)
    run = 1 if build.plain or kind.name == "F64" else products.run_of(kind)
    roundings = product_roundings(operand.ne[0], build.lanes, run)
    return f"{operand.ne[0]} products summed in float32, {roundings} roundings"


def factor(operand: Operand) -> F32 | F64:
    if operand.value is None or operand.type not in ("F32", "F16", "F64"):
        raise Unsupported(f"a product with a second factor of type {operand.type}")
    return single(operand.value, operand.type)


CHANCES = "kq_soft_max"  # llama.cpp's name of attention weights


def factors_of(node: Node) -> tuple[str, str]:
    """Return the names in `Factors` of a product's two sources."""
    if node.source(0).producer < 0:
        return "weights", "inputs"
    if node.source(1).name.startswith(CHANCES):
        return "values", "chances"
    return "keys", "queries"


def rounded_right(node: Node, build: Build) -> F32 | F64:
    """Return a product's second factor, rounded to the build's format."""
    x = factor(node.source(1))
    return x if build.factors is None else build.factors.round(factors_of(node)[1], x, build.tip)


def rounded_left(weight: Weight, name: str, build: Build) -> Weight:
    """Return rows of a product's first factor, rounded to the build's format."""
    if build.factors is None or not build.factors.rounds(name):
        return weight
    tip = None if name == "weights" else build.tip
    double = weight.format.name == "F64"
    values = weight.raw.view(np.float64).reshape(weight.shape) if double else weight.values()
    found = build.factors.round(name, values, tip)
    raw = np.ascontiguousarray(found, np.float32).reshape(-1).view(np.uint8)
    return Weight(weight.name, WeightFormat.member("F32"), weight.shape, raw)


@meaning("MUL_MAT")
def mul_mat(node: Node, build: Build) -> Expected:
    """Multiply (.., rows, k) and (.., tokens, k) -> (.., tokens, rows); the first factor
    broadcasts.
    """
    a, b = node.source(0), rounded_right(node, build)
    left, right = factors_of(node)
    loss = 0.0 if build.factors is None else build.factors.loss_of(right)
    value = np.empty(node.value.shape)
    allowed = np.empty(value.shape if is_sized(build) else 0)
    per3, per2 = b.shape[0] // a.ne[3], b.shape[1] // a.ne[2]
    for i3, i2 in np.ndindex(a.ne[3], a.ne[2]):
        part = slice(i3 * per3, (i3 + 1) * per3), slice(i2 * per2, (i2 + 1) * per2)
        x = b[part].reshape(-1, b.shape[-1])
        for rows, found in in_parts(x, matrix(a, i3, i2), build, left):
            to = (*part, slice(None), rows)
            value[to] = found.v.reshape(value[to].shape)
            if is_sized(build):
                room = found.settle().allowed
                if loss:
                    sizes = np.abs(node.wide(0)[i3, i2, rows]).T
                    room = room + loss * build.multiply(np.abs(x), sizes)
                if a.type in PLAIN and np.isnan(found.v).any():
                    room = np.where(hidden_products(x, node, i3, i2, build)[:, rows], np.inf, room)
                allowed[to] = np.reshape(room, value[to].shape)
    return Expected(value, allowed if is_sized(build) else 0.0, reason_of(a, build))


def hidden_products(x: F32 | F64, node: Node, i3: int, i2: int, build: Build) -> NDArray[np.bool_]:
    """Return a mask of products in which the zero weight of a hidden cell meets NaN or infinity.

    An engine that skips hidden cells gets a number there.
    """
    wrong = ~np.isfinite(node.wide(0)[i3, i2])
    zeros = x.reshape(-1, x.shape[-1]) == 0
    return build.multiply(zeros * 1.0, wrong.T * 1.0) > 0


@meaning("MUL_MAT_ID")
def mul_mat_id(node: Node, build: Build) -> Expected:
    """Multiply each row by the matrix of its expert: (tokens, used, rows)."""
    experts, b = node.source(0), rounded_right(node, build)[0]  # (tokens, used or 1, k)
    ids = node.source(2).value
    assert ids is not None
    chosen = ids[0, 0]  # (tokens, used)
    x = np.broadcast_to(b, (*chosen.shape, b.shape[-1]))
    value = np.empty((*chosen.shape, experts.ne[1]))
    allowed = np.empty(value.shape)
    for expert in np.unique(chosen):
        at = chosen == expert
        weight = matrix(experts, 0, int(expert))
        for rows, some in in_parts(x[at], weight, build, "weights"):
            found = some.settle()
            value[at, rows], allowed[at, rows] = found.value, found.allowed
    return Expected(value[None], allowed[None], reason_of(experts, build))


@meaning("LIGHTNING_INDEXER")
def lightning_indexer(node: Node, build: Build) -> Expected:
    """Sum over heads of max(q . k, 0) * weight, plus the mask: (streams, 1, tokens, cells)."""
    q, k, w, mask = (node.wide(i) for i in range(4))
    terms, heads = q.shape[-1], q.shape[2]
    right = k[:, None, :, 0].swapaxes(-1, -2)  # (streams, 1, size, cells)
    dots = build.multiply(q, right).swapaxes(-1, -2)  # (streams, tokens, cells, heads)
    size = build.multiply(np.abs(q), np.abs(right)).swapaxes(-1, -2)
    shown = np.maximum(dots, 0)
    off = product_roundings(terms, build.lanes, 1) * U * size + U * np.abs(dots)
    scores = total(Near(shown, off) * exact(w[:, 0][:, :, None, :]), heads + 1, keep=False)
    per = np.repeat(mask[:, 0], len(q) // len(mask), axis=0)
    out = finite(scores + exact(per))[:, None]
    return out.expect(f"{terms} products, {heads} heads added one after the other")
