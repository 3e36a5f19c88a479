"""The ways in which a replay computes a node from the value of its formula."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.node import PLAIN, Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import expect, round_to_type
from lockstep.engine.ops.near import F64, Expected
from lockstep.harness.graph.disturbed import disturb_values
from lockstep.harness.graph.norm_sums import NORMS, error_of_rows
from lockstep.harness.graph.probable import PRODUCTS, error_of_product
from lockstep.harness.judging.compare import pieces
from lockstep.harness.judging.noise import random_shares, tip_activation
from lockstep.harness.synth.draws import begin_stream, raw, stream


@dataclass(frozen=True)
class Honest:
    """The honest way. It takes the formula's value with the build's deliberate roundings, and
    rounds it once to the node's type.

    sizes: True if results need bounds. The magnitudes for bounds take most of the time.
    """

    sizes: bool = field(default=True, kw_only=True)
    wide = False

    def compute(self, build: Build, node: Node) -> NDArray[Any]:
        """Return the node's value in an engine that computes in this way."""
        return self.result(node, expect(node, self.build(build, node)))

    def build(self, build: Build, node: Node) -> Build:
        return build if self.sizes else replace(build, bounds=False)

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        if found.answer is not None:
            return found.answer
        if found.value.dtype == PLAIN.get(node.type, np.uint8):
            return found.value
        return round_to_type(found.value, node.type)


@dataclass(frozen=True)
class Wide(Honest):
    """An honest run that keeps ggml's F32 in float64 between nodes. It still converts
    activations."""

    wide = True


@dataclass(frozen=True)
class RoundedToHalves(Honest):
    """An engine that rounds each result to fewer bits, such as one that computes in F16 or BF16."""

    keep: Callable[[NDArray[np.float32]], F64]

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        out = super().result(node, found)
        return out if out.dtype != np.float32 else self.keep(out).astype(np.float32)


@dataclass(frozen=True)
class Noisy(Honest):
    """An honest engine with random errors: each result is off by a random share of its allowed
    error.

    Sums of products are off by a share of their probable error. Each row of a norm is scaled by a
    possible error of adding squares in float32. In each product that converts activations, one
    activation moves to the next step. Equal values are sorted in a random order.
    """

    seed: int = 0

    def bits(self, node: Node, what: str) -> Philox:
        return stream(self.seed, name_of(node, what))

    def build(self, build: Build, node: Node) -> Build:
        factors = build.factors
        if factors is not None and factors.loss_of("chances"):
            lose = Lose(partial(self.bits, node, "loss"), factors.loss)
            factors = replace(factors, chances=lose)
        return replace(
            build,
            sizes=False,
            factors=factors,
            tip=Tip(partial(self.bits, node, "tip")),
            ties=lambda n: raw(self.seed, name_of(node, "ties"), n),
        )

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        products = node.op in PRODUCTS
        bound = np.asarray(error_of_product(node, found.value) if products else found.allowed)
        if found.answer is not None or not (found.value.size and np.any(bound)):
            return super().result(node, found)
        if node.op in NORMS:
            found = replace(found, value=self.scaled_rows(node, found.value))
        drawn = begin_stream(self.seed, name_of(node, "error"))
        out = round_to_type(np.zeros(found.value.shape), node.type)
        flat = out.reshape(-1)
        with np.errstate(over="ignore"):
            for start, (value, allowed) in pieces(found.value, bound):
                there = flat[start : start + value.size]
                there[:] = disturb_values(value, allowed, drawn.random_raw(value.size))
        return out

    def scaled_rows(self, node: Node, value: F64) -> F64:
        """Scale each row by a random share of the error that a float32 sum may have."""
        error = error_of_rows(node)
        drawn = begin_stream(self.seed, name_of(node, "rows")).random_raw(error.size)
        return value * (1 + random_shares(drawn).reshape(error.shape) * error)


def name_of(node: Node, what: str) -> str:
    """Return the name of a separate stream of random numbers for a node."""
    return f"{what} {node.step} {node.ubatch} {node.index}"


@dataclass(frozen=True, eq=False)
class Lose:
    """Makes each number larger or smaller by a random fraction of itself, at most `share`."""

    begin: Callable[[], Philox]
    share: float

    def __call__(self, x: NDArray[Any]) -> F64:
        drawn = random_shares(self.begin().random_raw(x.size)).reshape(x.shape)
        return x * (1 + self.share * drawn)


@dataclass(frozen=True, eq=False)
class Tip:
    """Moves one random activation by one step of its conversion."""

    begin: Callable[[], Philox]

    @cached_property
    def bits(self) -> Philox:
        return self.begin()  # created on demand, because most nodes convert nothing

    def __call__(self, x: NDArray[Any], converted: F64) -> F64:
        if np.array_equal(converted, x):
            return converted
        row, column = (int(r >> np.uint64(33)) for r in self.bits.random_raw(2))
        return tip_activation(x, converted, row % (x.size // x.shape[-1]), column % x.shape[-1])
