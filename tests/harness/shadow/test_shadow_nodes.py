"""Nodes in columns become values again, and malformed nodes are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.node import Node, Operand
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.shadow.nodes import layer_of, nodes_of
from tests.shadow_nodes import node, normal, params, piece

X, Y = normal(1, 2, 3, 40), normal(2, 1, 40)
WEIGHT = Operand(
    name="blk.1.w (view)",
    type="Q8_0",
    ne=(32, 4, 1, 1),
    value=None,
    weight="blk.1.w",
    offset=68,
    nb=(34, 34, 136, 136),
)
ADD = replace(node("ADD", X + Y, X, Y, held=params(1, 2.5)), step=1, ubatch=2, index=30)
PRODUCT = replace(node("MUL_MAT", X[..., :4], X, X), sources=(WEIGHT, None, ADD.source(0)))
BYTES = Operand(name="c", type="Q8_0", ne=(64, 2, 1, 1), value=np.zeros((1, 1, 2, 68), np.uint8))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool((a == b).all()) and a.shape == b.shape and a.dtype == b.dtype
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Node | Operand):
        names = [name for name in a.__slots__ if name != "nb"]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    return bool(a == b)


def test_nodes_survive_the_transfer() -> None:
    quantised = replace(ADD, sources=(BYTES,))
    sent = (ADD, PRODUCT, quantised)
    assert all(map(same, nodes_of(piece(*sent)), sent))
    assert next(nodes_of(piece(PRODUCT))).source(0).nb == WEIGHT.nb


def test_kind_of_an_op_is_its_first_parameter() -> None:
    unary = node("UNARY", X, X, held=params(1))
    sent = replace(piece(unary), ops={(0, 0): "ABS", (0, 1): "SGN"})
    assert next(nodes_of(sent)).op == "SGN"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("at", lambda at: at + 10**6),  # beyond the data
        ("at", lambda at: at * 0 - 1),  # a missing result
        ("ne", lambda ne: ne * 10),
        ("ne", lambda ne: ne * 2**40),
        ("ne", lambda ne: -ne),
        ("op", lambda op: op + 7),
        ("type", lambda kind: kind + 7),
        ("params", lambda held: held[:0]),
        ("types", lambda kinds: ("F99",) * 2),
        ("name", lambda name: name[:0]),
    ],
)
def test_invalid_node_is_refused(name: str, change: Any) -> None:
    whole = piece(ADD)
    with pytest.raises(MalformedAnswer, match="row 0 of 3: expected a node, got"):
        list(nodes_of(replace(whole, **{name: change(getattr(whole, name))})))


def test_rows_before_the_first_node_are_refused() -> None:
    """Rows before the first node would be dropped silently if they were accepted."""
    whole = piece(ADD)
    with pytest.raises(MalformedAnswer, match="the first row: expected a node, got 3"):
        list(nodes_of(replace(whole, place=np.array([3, -1, 0]))))


@pytest.mark.parametrize(
    ("names", "layer"),
    [
        (("l_out-3", "x-2"), 3),
        (("Kcur-12 (view)",), 12),
        (("node_7", "blk.4.ffn_up.weight"), 4),
        (("cache_k_l5 (view)",), 5),
        (("result_norm", "node_9"), None),
    ],
)
def test_layer_comes_from_the_first_name_with_one(
    names: tuple[str, ...], layer: int | None
) -> None:
    assert layer_of(names) == layer
