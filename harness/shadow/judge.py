"""Judges nodes one after the other. It computes each node again from its sources, and compares the
values within the node's bound."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node, Operand, layout
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import expect, rounding_of
from lockstep.engine.ops.near import F64, SMALLEST, Expected
from lockstep.harness.judging.comparable import incomparable
from lockstep.harness.judging.compare import mismatch_between, pieces
from lockstep.harness.judging.tolerances import limits_of, where_limited
from lockstep.harness.records import Mismatch
from lockstep.harness.report.nodes import NodeRow

# SENSELESS: errors of a node whose shapes, types or parameters do not fit; an engine may send wrong
# data
# exceeds the number of nodes in a graph, so that nodes of later ubatches come later in the order
UBATCH = 100_000
OF_LAYER = re.compile(r"-\d+(?= \(|$)")  # layer in llama.cpp's names of nodes
SENSELESS = (ArithmeticError, AssertionError, LookupError, MemoryError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeFinding:
    """A node whose value differs from the result computed from its sources."""

    step: int
    ubatch: int
    index: int
    layer: int | None
    op: str
    name: str
    type: str
    sources: tuple[str, ...]
    mismatch: Mismatch
    reason: str

    @property
    def place(self) -> str:
        return f"step {self.step}, ubatch {self.ubatch}, node {self.index} ({self.name})"


@dataclass(kw_only=True)
class Tally:
    """The counts for one kind of op, in one layer or in all layers."""

    nodes: int = 0
    # number of compared elements; elements below are not compared, see Incomparable
    elements: int = 0
    nan: int = 0
    unbounded: int = 0
    worst: float = 0.0  # largest error as a share of its limit
    worst_error: float = 0.0  # largest absolute error
    exact: int = 0  # number of nodes that equal the rounded truth bit for bit
    free: int = 0  # number of elements whose limit includes more than the last rounding
    reach: float = 0.0  # for these elements, largest error as a share of `reach_of`
    violations: int = 0
    not_compared: dict[str, int] = field(default_factory=dict)  # reason -> number of nodes

    def add(self, other: "Tally") -> None:
        self.nodes += other.nodes
        self.elements += other.elements
        self.nan += other.nan
        self.unbounded += other.unbounded
        self.exact += other.exact
        self.free += other.free
        self.reach = max(self.reach, other.reach)
        self.violations += other.violations
        self.worst = max(self.worst, other.worst)
        self.worst_error = max(self.worst_error, other.worst_error)
        for reason, n in other.not_compared.items():
            self.not_compared[reason] = self.not_compared.get(reason, 0) + n

    def skip(self, reason: str) -> None:
        self.not_compared[reason] = self.not_compared.get(reason, 0) + 1

    @property
    def compared(self) -> int:
        return self.nodes - sum(self.not_compared.values())


class ShadowJudge:
    """Judges nodes as they arrive. It keeps counts and findings, but not the nodes."""

    def __init__(self, file: GgufFile, build: Build) -> None:
        self.file = file
        self.build = build
        self.tallies: dict[tuple[str, int | None], Tally] = {}  # keys: (op, layer)
        self.findings: list[NodeFinding] = []
        self.rows: list[NodeRow] = []

    def __call__(self, node: Node) -> None:
        tally = self.tallies.setdefault((node.op, node.layer), Tally())
        tally.nodes += 1
        try:
            expected, actual = self.expect(node)
        except (EngineError, *SENSELESS) as error:
            known = isinstance(error, EngineError)
            tally.skip(str(error) if known else f"the node is malformed: {error!r:.200}")
            return
        self.compare(node, expected, actual, tally)

    def expect(self, node: Node) -> tuple[Expected, NDArray[Any]]:
        """Return the expected result and the actual result of a node. Raises EngineError or an
        error in SENSELESS."""
        sources = tuple(s if s is None else self.resolve(s) for s in node.sources)
        expected = expect(replace(node, sources=sources), self.build)
        return expected, node.value if expected.actual is None else expected.actual

    def compare(self, node: Node, expected: Expected, actual: NDArray[Any], tally: Tally) -> None:
        value = rounded_to(expected.value, actual)
        allowed = limits_of(expected.value, expected.allowed)
        actual = where_limited(value, actual, allowed)
        mismatch = mismatch_between(value, actual, allowed)
        if mismatch is None and not self.count_elements(value, actual, allowed, tally):
            return
        share, error, worst = closeness(value, actual, allowed)
        tally.worst, tally.worst_error = max(tally.worst, share), max(tally.worst_error, error)
        wrong = mismatch is not None
        self.rows.append(row_of(node, expected.reason, share, error, worst, wrong=wrong))
        free, reach = reach_of(value, actual, allowed, rounding_of(node.type)[0])
        tally.free, tally.reach = tally.free + free, max(tally.reach, reach)
        if mismatch is None:
            tally.exact += error == 0.0
            return
        tally.elements += actual.size
        tally.violations += 1
        names = (s.name for s in node.sources if s is not None)
        self.findings.append(
            NodeFinding(
                step=node.step,
                ubatch=node.ubatch,
                index=node.index,
                layer=node.layer,
                op=node.op,
                name=node.name,
                type=node.type,
                sources=tuple(names),
                mismatch=mismatch,
                reason=expected.reason,
            )
        )

    def count_elements(
        self, value: NDArray[Any], actual: NDArray[Any], allowed: F64 | float, tally: Tally
    ) -> bool:
        """Count the elements of a node that has no mismatch. Return False if no element can be
        compared."""
        none = incomparable(value, actual, allowed)
        tally.nan += none.nan
        tally.unbounded += none.unbounded
        tally.elements += actual.size - none.total
        if actual.size and none.total == actual.size:
            tally.skip(none.reason)
            return False
        return True

    def resolve(self, source: Operand) -> Operand:
        """Return the operand with its value. The value of a weight comes from the model's file."""
        if not source.weight:
            return source
        if source.weight not in self.file.tensors:
            raise Unsupported(f"the weight {source.weight!r} is not in the file")
        return replace(source, value=view_of(self.file.raw(source.weight), source))

    def by_op(self) -> Iterator[tuple[str, Tally]]:
        """Yield each kind of op with its counts over all layers, in order of name."""
        for op in sorted({op for op, _ in self.tallies}):
            tally = Tally()
            for (name, _), one in self.tallies.items():
                if name == op:
                    tally.add(one)
            yield op, tally


def row_of(
    node: Node, reason: str, share: float, error: float, worst: tuple[int, ...], *, wrong: bool
) -> NodeRow:
    return NodeRow(
        step=node.step,
        order=node.ubatch * UBATCH + node.index,
        layer=node.layer,
        name=OF_LAYER.sub("", node.name),
        op=node.op,
        share=share,
        error=error,
        worst=worst,
        reason=reason,
        wrong=wrong,
    )


def view_of(raw: NDArray[np.uint8], source: Operand) -> NDArray[Any]:
    """Return a view of a weight's bytes, with the strides of the operand. Raises EngineError if the
    view reaches outside the weight."""
    dtype, shape, strides, reach = lying(source.type, source.ne, source.nb)
    if reach is None:
        return np.empty(shape, dtype)  # the last tensors of a batch without outputs have no rows
    if not 0 <= source.offset < source.offset + reach <= raw.size:
        raise EngineError(f"the operand {source.name!r} lies outside the weight {source.weight!r}")
    return np.ndarray(shape, dtype, raw, source.offset, strides)


@lru_cache(maxsize=1 << 12)  # cached, because graphs have the same tensors in every run
def lying(
    kind: str, ne: tuple[int, ...], nb: tuple[int, ...]
) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...], int | None]:
    """Return the dtype, the shape, the strides, and the number of bytes from the first element to
    the end of the last. The number of bytes is None for an empty tensor, and 0 if an element would
    lie before the first element."""
    dtype, shape, strides = layout(kind, ne, nb)
    assert strides is not None
    ends = sum((n - 1) * b for n, b in zip(shape, strides, strict=True))
    reach = ends + dtype.itemsize if min(*shape, *strides) >= 0 else 0
    return dtype, shape, strides, reach if prod(shape) else None


def rounded_to(value: NDArray[Any], actual: NDArray[Any]) -> NDArray[Any]:
    """Return the exact value, rounded to the result's type. The bounds include this rounding."""
    if actual.dtype.kind != "f" or value.dtype == actual.dtype:
        return value
    with np.errstate(over="ignore"):
        return value.astype(actual.dtype)


def closeness(
    value: NDArray[Any], actual: NDArray[Any], allowed: NDArray[np.float64] | float
) -> tuple[float, float, tuple[int, ...]]:
    """Return the worst error of finite elements as a share of its limit, the worst absolute error,
    and the place of the worst share. The place is () if every element is exact."""
    if value.shape != actual.shape or value.size == 0:
        return 0.0, 0.0, ()
    most, worst, at = 0.0, 0.0, -1
    for start, (want, got, limit) in pieces(value, actual, np.asarray(allowed)):
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            error = np.abs(got - want)
            if not np.isfinite(error.max()):
                error = np.where(np.isfinite(error), error, 0.0)
            if not error.any():
                continue
            share = np.divide(error, limit, out=np.zeros(error.shape), where=error > 0)
        here = int(share.argmax())
        worst = max(worst, float(error.max()))
        if share[here] > most:
            most, at = float(share[here]), start + here
    place = np.unravel_index(at, value.shape) if at >= 0 else ()
    return most, worst, tuple(int(i) for i in place)


def reach_of(
    value: NDArray[Any], actual: NDArray[Any], allowed: NDArray[np.float64] | float, u: float
) -> tuple[int, float]:
    """Return the number of elements with further roundings than u, the rounding of the result
    itself, and a measure of their errors.

    The rounding u counts twice, because the exact value is rounded too. Roundings have random
    signs, so k roundings add up to about sqrt(k) times one rounding. This is the geometric mean of
    one rounding (u times the element's size) and of all k roundings (the bound). The measure is the
    largest ratio of an error to this mean. If an element is small because its terms cancel, the
    usual size of the elements is used instead of its own size.
    """
    if value.shape != actual.shape or not np.any(allowed):
        return 0, 0.0
    n_free, most, usual = 0, 0.0, usual_size(value)
    for _, (want, got, limit) in pieces(value, actual, np.asarray(allowed)):
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            size = np.abs(want)
            free = np.isfinite(size) & (limit > 2.5 * u * size + 4 * SMALLEST)
            error = np.abs(got - want)
            square = error * error / (limit * u * np.maximum(size, usual))
        n_free += int(free.sum())
        most = max(most, float(square.max(initial=0.0, where=free & (error > 0))))
    return n_free, sqrt(most)


def usual_size(value: NDArray[Any]) -> float:
    """Return the root mean square of the finite values."""
    total, n = 0.0, 0
    for _, (part,) in pieces(value):
        finite = np.isfinite(part)
        with np.errstate(over="ignore"):
            total += float(np.square(part).sum(where=finite))
        n += int(finite.sum())
    return float(np.sqrt(total / n)) if n else 0.0
