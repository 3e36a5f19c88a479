"""Hand-made nodes, for tests of ops."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node, Operand
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import expect
from lockstep.engine.ops.near import Expected
from lockstep.harness.records import ANY_KIND, COMPUTE, Nodes

BUILD = Build(lanes=16)
TYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64"}


def four(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def operand(value: Any, name: str = "x") -> Operand:
    array = four(value)
    return Operand(
        name=name, type=TYPES[array.dtype.name], ne=tuple(reversed(array.shape)), value=array
    )


def params(*values: float) -> NDArray[np.int32]:
    """Return the parameters of a node: integers as they are, floats as their bits."""
    held = np.zeros(16, np.int32)
    for i, value in enumerate(values):
        held[i] = np.float32(value).view(np.int32) if isinstance(value, float) else value
    return held


def node(op: str, result: Any, *sources: Any, held: NDArray[np.int32] | None = None) -> Node:
    value = four(result)
    return Node(
        step=0,
        ubatch=0,
        index=5,
        op=op,
        name=f"{op.lower()}-1",
        layer=1,
        type=TYPES[value.dtype.name],
        ne=tuple(reversed(value.shape)),
        params=params() if held is None else held,
        sources=tuple(None if s is None else operand(s) for s in sources),
        value=value,
    )


def expected(op: str, result: Any, *sources: Any, held: Any = None) -> Expected:
    return expect(node(op, result, *sources, held=held), BUILD)


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def piece(*nodes: Node) -> Nodes:
    """Return nodes in the form of an engine's message."""
    ops = sorted({n.op for n in nodes})
    rows: list[tuple[Node, int, Any]] = []
    for n in nodes:
        rows.append((n, -1, n))
        rows += [(n, i, source) for i, source in enumerate(n.sources) if source is not None]
    held = [b"" if x.value is None else x.value.tobytes().ljust(64) for _, _, x in rows]
    ends = np.cumsum([len(raw) for raw in held], dtype=np.int64)
    types = sorted({x.type for _, _, x in rows})
    column = partial(np.array, dtype=np.int64)
    return Nodes(
        ops={(i, ANY_KIND): op for i, op in enumerate(ops)},
        types=tuple(types),
        step=column([n.step for n, _, _ in rows]),
        ubatch=column([n.ubatch for n, _, _ in rows]),
        index=column([n.index for n, _, _ in rows]),
        place=column([place for _, place, _ in rows]),
        producer=column([getattr(x, "producer", -1) for _, _, x in rows]),
        op=column([ops.index(n.op) for n, _, _ in rows]).astype(np.int32),
        type=column([types.index(x.type) for _, _, x in rows]).astype(np.int32),
        ne=column([x.ne for _, _, x in rows]),
        nb=column([strides(x) for _, _, x in rows]),
        params=np.array([n.params for n, _, _ in rows]),
        name=np.array([letters(x.name) for _, _, x in rows]),
        weight=np.array([letters(getattr(x, "weight", "")) for _, _, x in rows]),
        offset=column([getattr(x, "offset", 0) for _, _, x in rows]),
        address=column(range(1, len(rows) + 1)),
        root=column(range(1, len(rows) + 1)),
        root_size=column([len(raw) for raw in held]),
        root_home=column([COMPUTE] * len(rows)),
        root_name=np.array([letters(x.name) for _, _, x in rows]),
        at=column(
            [
                -1 if x.value is None else end - len(raw)
                for (_, _, x), end, raw in zip(rows, ends, held, strict=True)
            ]
        ),
        data=np.frombuffer(b"".join(held), np.uint8).copy(),
    )


def strides(x: Any) -> tuple[int, ...]:
    """Return the strides in ggml's order."""
    given: tuple[int, ...] = getattr(x, "nb", ())
    return given or ((0,) * 4 if x.value is None else tuple(reversed(x.value.strides)))


def letters(name: str) -> NDArray[np.uint8]:
    return np.frombuffer(name.encode().ljust(64, b"\0"), np.uint8)
