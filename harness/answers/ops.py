"""Checks of answers about single computations: decoded weights, products, single ops."""

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.node import Node, layout
from lockstep.harness.answers.base import ARRAYS, Facts, MalformedAnswer, expect_array, expect_type

WAYS = {"plain", "callback", "capture", "copy"}  # names of timed runs; counts are listed separately


def weights_in(type_name: str, raw: NDArray[np.uint8]) -> int | None:
    try:
        kind = type_by_name(type_name)
    except Unsupported:
        return None
    return raw.size // kind.bytes * kind.block


def check_dequantize(value: Any, facts: Facts, type_name: str, raw: NDArray[np.uint8]) -> None:
    shape = (weights_in(type_name, raw),)
    expect_array(value, np.float32, shape, f"the weights of {raw.size} bytes of {type_name}")


def check_multiply(
    value: Any, facts: Facts, type_name: str, raw: NDArray[np.uint8], x: NDArray[np.float32]
) -> None:
    weights = weights_in(type_name, raw)
    rows = None if weights is None else weights // max(1, x.shape[-1])
    expect_array(value, np.float32, (*x.shape[:-1], rows), "the product")


def check_time_dequantize(value: Any, *_: Any) -> None:
    check_seconds(value, "the time")


def check_time_capture(value: Any, *_: Any) -> None:
    expect_type(value, dict, "the times")
    if not value.keys() >= WAYS:
        raise MalformedAnswer("the times", f"times of {', '.join(sorted(WAYS))}", value)
    for name in sorted(WAYS):
        check_seconds(value[name], name)


def check_seconds(value: Any, where: str) -> None:
    if type(value) is not float or not 0 < value < inf:
        raise MalformedAnswer(where, "seconds, a float", value)


def check_compute(value: Any, facts: Facts, node: Node) -> None:
    dtype, shape, _ = layout(node.type, node.ne)
    expect_array(value, dtype.type, shape, f"the result of {node.op}")


def check_operate(value: Any, facts: Facts, op: str, *_: Any) -> None:
    expect_type(value, dict, f"the results of {op}")
    for name, held in value.items():
        expect_type(name, str, f"the name of a result of {op}")
        shape = held.shape if type(held) in ARRAYS else ()
        expect_array(held, None, shape, f"the result {name[:80]!r} of {op}")
