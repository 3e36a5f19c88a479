"""Matrix products as ggml takes them: the second factor as the first one's type wants it.

Source: ggml_compute_forward_mul_mat and _mul_mat_id in ggml-cpu/ggml-cpu.c, and
ggml_compute_forward_lightning_indexer in ops.cpp, of llama.cpp in llama-cpp-python 0.3.36.
"""

import numpy as np

from engine.errors import Unsupported
from engine.ops.ggml.base import (
    F64,
    LARGEST,
    PLAIN,
    SMALLEST,
    Build,
    Expected,
    Node,
    Operand,
    U,
    meaning,
    single,
)
from engine.ops.ggml.near import Near, exact, finite, total
from engine.ops.products import convert, product_and_size, product_roundings, run_of
from engine.quants.base import F32, WeightFormat
from engine.weights import Weight


def matrix(operand: Operand, i3: int, i2: int) -> Weight:
    """One matrix of a stack, as a weight: (rows, columns)."""
    assert operand.value is not None
    raw = np.ascontiguousarray(operand.value[i3, i2]).reshape(-1).view(np.uint8)
    shape = (operand.ne[1], operand.ne[0])
    return Weight(operand.name, WeightFormat.named(operand.type), shape, raw)


def multiplied(x: F32 | F64, weight: Weight, build: Build) -> tuple[F64, F64, int]:
    """x: (tokens, columns) -> the product, the allowed error, and the roundings counted."""
    kind = weight.format
    terms = weight.shape[-1]
    run = 1 if build.plain or kind.name == "F64" else run_of(kind)
    if build.plain or kind.name in ("F32", "F64"):
        value, size = by_chunks(x.astype(np.float64), weight, build)
    elif kind.name in PLAIN and kind.vec_dot_type == "F16":
        acts = tipped(x, x.astype(np.float16).astype(np.float64), build)
        value, size = by_chunks(acts, weight, build)
    else:
        converted = convert(np.asarray(x, np.float32), kind, build.generic)
        sums = converted.sums if kind.vec_dot_type == "Q8_1" else None
        acts = tipped(x, converted.values, build)
        out, size = product_and_size(acts, sums, weight, x.dtype, build.multiply)
        value = out.astype(np.float64)
    roundings = product_roundings(terms, build.lanes, run)
    allowed = roundings * U * size + U * np.abs(value) + terms * SMALLEST
    # a partial sum may overflow where another order of addition stays within float32
    return value, np.where(size > LARGEST, np.inf, allowed), roundings


def tipped(x: F32 | F64, converted: F64, build: Build) -> F64:
    return converted if build.tip is None else build.tip(x, converted)


def by_chunks(left: F64, weight: Weight, build: Build) -> tuple[F64, F64]:
    """The product and the sum of magnitudes, a few rows of the matrix at a time."""
    value, size = np.empty((len(left), weight.shape[0])), np.empty((len(left), weight.shape[0]))
    magnitudes = np.abs(left)
    if weight.format.name == "F64":  # decoding would round to float32
        right = weight.raw.view(np.float64).reshape(weight.shape).T
        return build.multiply(left, right), build.multiply(magnitudes, np.abs(right))
    for rows, chunk in weight.chunks():
        right = chunk.astype(np.float64).T
        value[:, rows] = build.multiply(left, right)
        size[:, rows] = build.multiply(magnitudes, np.abs(right, out=right))
    return value, size


def factor(operand: Operand) -> F32 | F64:
    if operand.value is None or operand.type not in ("F32", "F16", "F64"):
        raise Unsupported(f"a product with a second factor of type {operand.type}")
    return single(operand.value, operand.type)


@meaning("MUL_MAT")
def mul_mat(node: Node, build: Build) -> Expected:
    """(.., rows, k) and (.., tokens, k) -> (.., tokens, rows); the first one repeats."""
    a, b = node.source(0), factor(node.source(1))
    value, allowed = np.empty(node.value.shape), np.empty(node.value.shape)
    per3, per2 = b.shape[0] // a.ne[3], b.shape[1] // a.ne[2]
    roundings = 0
    for i3, i2 in np.ndindex(a.ne[3], a.ne[2]):
        part = slice(i3 * per3, (i3 + 1) * per3), slice(i2 * per2, (i2 + 1) * per2)
        rows = b[part]
        out, off, roundings = multiplied(rows.reshape(-1, rows.shape[-1]), matrix(a, i3, i2), build)
        value[part] = out.reshape(value[part].shape)
        allowed[part] = off.reshape(value[part].shape)
    return Expected(value, allowed, f"{a.ne[0]} products summed in float32, {roundings} roundings")


@meaning("MUL_MAT_ID")
def mul_mat_id(node: Node, build: Build) -> Expected:
    """Each row times the matrix of the expert chosen for it: (tokens, used, rows)."""
    experts, b = node.source(0), factor(node.source(1))[0]  # (tokens, used or 1, k)
    ids = node.source(2).value
    assert ids is not None
    chosen = ids[0, 0]  # (tokens, used)
    x = np.broadcast_to(b, (*chosen.shape, b.shape[-1]))
    value = np.empty((*chosen.shape, experts.ne[1]))
    allowed = np.empty(value.shape)
    roundings = 0
    for expert in np.unique(chosen):
        at = chosen == expert
        weight = matrix(experts, 0, int(expert))
        value[at], allowed[at], roundings = multiplied(x[at], weight, build)
    reason = f"{experts.ne[0]} products summed in float32, {roundings} roundings"
    return Expected(value[None], allowed[None], reason)


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
    return out.expected(f"{terms} products, {heads} heads added one after the other")
