"""Basic operations of small engines: products, sums of squares, softmax, parts of tensors."""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops import softmax
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.fused.base import Call, Result, expect_copy, operation, product
from lockstep.engine.ops.near import Expected, constant, exact, near, total

F32 = np.float32


@operation("matmul")
def matmul(call: Call) -> dict[str, Result]:
    """Multiply a (m, k) by b (k, n) -> (m, n). Both matrices are stored by rows."""
    return {"y": product(call["a"], call["b"]).expect("products summed in any order")}


@operation("add_scalar")
def add_scalar(call: Call) -> dict[str, Result]:
    return {"y": expect_copy((call["x"] + call.real("s")).astype(F32))}


@operation("scaled_add")
def scaled_add(call: Call) -> dict[str, Result]:
    """Return y + scale * x."""
    near = call.exact("y") + call.exact("x") * constant(call.real("scale"))
    return {"y": near.expect("a product and a sum")}


@operation("rsqrt_elem")
def rsqrt_elem(call: Call) -> dict[str, Result]:
    """Compute 1 / sqrt(x). An engine may use any instruction of the same accuracy."""
    return {"y": (constant(1.0) / call.exact("x").sqrt()).expect("a root and a quotient")}


@operation("sum_squares_axis")
def sum_squares_axis(call: Call) -> dict[str, Result]:
    """Sum squares along an axis. x: (rows, columns) -> a sum for each row (axis 1) or each column
    (axis 0)."""
    x, axis = call["x"], call.number("axis")
    near = total(exact(x * x), x.shape[axis] + 1, axis=axis, keep=False)
    return {"y": near.expect("squares summed in any order")}


@operation("broadcast_row_scalars")
def broadcast_row_scalars(call: Call) -> dict[str, Result]:
    """Repeat each row's scalar. x: (rows) -> (rows, width)"""
    x = call.inputs["x"]
    return {"y": expect_copy(np.repeat(x[:, None], call.number("width"), axis=1))}


@operation("transpose_2d")
def transpose_2d(call: Call) -> dict[str, Result]:
    return {"y": expect_copy(np.ascontiguousarray(call.inputs["x"].T))}


@operation("slice_cols")
def slice_cols(call: Call) -> dict[str, Result]:
    return {"y": expect_copy(call.inputs["x"][:, call.number("start") : call.number("end")])}


@operation("copy_slice")
def copy_slice(call: Call) -> dict[str, Result]:
    """Return the whole destination; elements outside the slice stay unchanged."""
    out, n = call.inputs["dst"].copy(), call.number("len")
    at, to = call.number("src_offset"), call.number("dst_offset")
    out[to : to + n] = call.inputs["src"][at : at + n]
    return {"dst": expect_copy(out)}


@operation("softmax_rows")
def softmax_rows(call: Call) -> dict[str, Result]:
    """Compute the softmax of rows. A row of only minus infinity may give zeros or equal shares, but
    never NaN.
    """
    x = call["x"]
    hidden = np.asarray(np.isneginf(x).all(axis=-1, keepdims=True))
    powers, sums = softmax.weights(exact(x), ANY_ENGINE, None, x.shape[-1])
    found = near(powers / sums).expect("powers summed in any order")
    if not hidden.any():
        return {"y": found}
    return {
        "y": {
            "zeros": fill_hidden(found, hidden, 0.0),
            "uniform": fill_hidden(found, hidden, float(F32(1) / F32(x.shape[-1]))),
        }
    }


def fill_hidden(found: Expected, hidden: NDArray[np.bool_], value: float) -> Expected:
    allowed = np.where(hidden, 0.0, found.allowed)
    return Expected(np.where(hidden, value, found.value), allowed, found.reason)
