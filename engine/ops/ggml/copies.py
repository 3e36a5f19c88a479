"""Ops that move values and at most change their type. Every bit of the result is determined.

Source: ggml-cpu/ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.node import PLAIN, Node, Operand, wide
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import EXACT, like, meaning
from lockstep.engine.ops.ggml.stored import store_rows
from lockstep.engine.ops.near import Expected
from lockstep.engine.quants.base import WeightFormat


def plain(operand: Operand) -> NDArray[np.generic]:
    """Return the operand's values in their own type."""
    if operand.value is None or operand.type not in PLAIN:
        raise Unsupported(f"a copy of {operand.type}")
    return operand.value


def convert_type(values: NDArray[np.generic], kind: str) -> NDArray[np.generic]:
    if kind not in PLAIN:
        raise Unsupported(f"a copy to {kind}")
    return values.astype(PLAIN[kind])


@meaning("CPY", "CONT", "DUP")
def copy(node: Node, _: Build) -> Expected:
    """Copy the elements in order, whatever the shapes are."""
    source = node.source(0)
    if source.type == node.type and source.value is not None:
        return Expected(source.value.reshape(node.value.shape), 0.0, EXACT)
    values = plain(source) if source.type in PLAIN else wide(source)
    return Expected(convert_type(values, node.type).reshape(node.value.shape), 0.0, EXACT)


@meaning("CONCAT")
def concat(node: Node, _: Build) -> Expected:
    """Join tensors along an axis; rows of coded types are joined byte by byte."""
    axis = 3 - int(node.params[0])
    both = [node.source(i).value if axis < 3 else plain(node.source(i)) for i in (0, 1)]
    if both[0] is None or both[1] is None:
        raise Unsupported("CONCAT of uncaptured values")
    return Expected(np.concatenate([both[0], both[1]], axis=axis), 0.0, EXACT)


@meaning("REPEAT")
def repeat(node: Node, _: Build) -> Expected:
    return Expected(like(plain(node.source(0)), node.value.shape), 0.0, EXACT)


@meaning("PAD")
def pad(node: Node, _: Build) -> Expected:
    before, after = node.params[0:8:2], node.params[1:8:2]
    widths = [(int(a), int(b)) for a, b in zip(before, after, strict=True)][::-1]
    how: Literal["wrap", "constant"] = "wrap" if node.params[8] else "constant"
    return Expected(np.pad(plain(node.source(0)), widths, how), 0.0, EXACT)


@meaning("SET")
def put(node: Node, _: Build) -> Expected:
    """Write a tensor into a view of another tensor; strides and offset are parameters."""
    out, part = plain(node.source(0)).copy(), plain(node.source(1))
    nb1, nb2, nb3, offset = (int(p) for p in node.params[:4])
    view = np.ndarray(part.shape, out.dtype, out, offset, (nb3, nb2, nb1, out.itemsize))
    view[...] = part
    return Expected(out, 0.0, EXACT)


@meaning("GET_ROWS")
def get_rows(node: Node, build: Build) -> Expected:
    """Return rows by ids. source 0: (ne3, ne2, rows, columns); source 1: ids, (1, ne3, ne2, n)."""
    table, ids = node.source(0), node.source(1).value
    assert ids is not None
    assert table.value is not None
    at3, at2 = np.indices(ids.shape[1:3])[..., None]
    rows = table.value[at3, at2, ids[0]]
    if table.type not in PLAIN:
        flat = WeightFormat.member(table.type).dequantize(np.ascontiguousarray(rows).reshape(-1))
        rows = flat.reshape(node.value.shape)
    if build.factors is not None and table.producer < 0 and rows.dtype.kind == "f":
        rows = build.factors.round("rows", rows)
    return Expected(convert_type(rows, node.type), 0.0, EXACT)


@meaning("SET_ROWS")
def set_rows(node: Node, build: Build) -> Expected:
    """Return the whole destination: the old contents with the written rows."""
    rows, ids = node.source(0), node.source(1).value
    assert ids is not None
    if node.type not in PLAIN:
        return set_coded_rows(node, ids, build)
    out = plain(node.source(2)).copy()
    with np.errstate(over="ignore"):
        values = convert_type(plain(rows), node.type)
    for i3, i2 in np.ndindex(values.shape[:2]):
        out[i3, i2, ids[0, i3 % ids.shape[1], i2 % ids.shape[2]]] = values[i3, i2]
    return Expected(out.reshape(node.value.shape), 0.0, EXACT)


def set_coded_rows(node: Node, ids: NDArray[np.generic], build: Build) -> Expected:
    """Compare rows by their decoded values; ops that read the rows later get the codes."""
    rows, before = plain(node.source(0)).astype(np.float32), node.source(2)
    values, slack, raw = store_rows(rows, node.type, build)
    if before.value is None:
        raise Unsupported("SET_ROWS into uncaptured values")
    out, codes = wide(before), before.value.copy()
    allowed = np.zeros(out.shape)
    for i3, i2 in np.ndindex(rows.shape[:2]):
        at = ids[0, i3 % ids.shape[1], i2 % ids.shape[2]]
        out[i3, i2, at], allowed[i3, i2, at] = values[i3, i2], slack[i3, i2]
        codes[i3, i2, at] = raw[i3, i2]
    actual = wide(replace(before, value=node.value))
    reason = (
        "codes of the written rows; between two codes, a fused operation may give the other one"
    )
    return Expected(out, allowed, reason, actual=actual, answer=codes)


@meaning("IM2COL")
def im2col(node: Node, _: Build) -> Expected:
    """Return the windows of rows or images, with zeros outside: (batch, positions.., channels *
    kernel).
    """
    images = bool(node.params[6])
    stride, stride_y, padding, padding_y, step, step_y = (int(p) for p in node.params[:6])
    data = plain(node.source(1))  # (batch, channels, height, width)
    if not images:
        data, stride_y, padding_y, step_y = data[0][:, :, None], 1, 0, 1
    width, height = node.source(0).ne[0], node.source(0).ne[1] if images else 1
    below, behind = padding_y + height * step_y, padding + width * step
    data = np.pad(data, ((0, 0), (0, 0), (padding_y, below), (padding, behind)))
    y = np.arange(node.ne[2] if images else 1)[:, None] * stride_y + np.arange(height) * step_y
    x = np.arange(node.ne[1])[:, None] * stride + np.arange(width) * step
    windows = data[:, :, y[:, :, None, None], x]  # (batch, channels, rows, height, columns, width)
    flat = windows.transpose(0, 2, 4, 1, 3, 5).reshape(node.value.shape)
    return Expected(convert_type(flat, node.type), 0.0, EXACT)
