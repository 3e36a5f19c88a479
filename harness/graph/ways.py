"""The ways in which a replay computes a node: what becomes of the value that its formula gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from engine.ops.build import Build
from engine.ops.ggml.base import PLAIN, Node, expect, settled
from engine.ops.near import F64, Expected
from harness.noise import tipped
from harness.synth.draws import stream


@dataclass(frozen=True)
class Honest:
    """The value, rounded to the node's type once; the build's deliberate roundings are made."""

    wide = False

    def compute(self, build: Build, node: Node) -> NDArray[Any]:
        """What an engine holds that computes this way."""
        return self.result(node, expect(node, self.build(build, node)))

    def build(self, build: Build, node: Node) -> Build:
        return build

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        if found.answer is not None:
            return found.answer
        if found.value.dtype == PLAIN.get(node.type, np.uint8):
            return found.value
        return settled(found.value, node.type)


@dataclass(frozen=True)
class Wide(Honest):
    """What is F32 in ggml stays in float64 from node to node; conversions are made all the same."""

    wide = True


@dataclass(frozen=True)
class Noisy(Honest):
    """Each result is off by a random share of what its formula allows, and of each product that
    converts activations one of them is tipped to the next step; equal values are in any order: an
    honest engine, and unlucky."""

    seed: int = 0

    def bits(self, node: Node, what: str) -> Philox:
        return stream(self.seed, f"{what} {node.step} {node.ubatch} {node.index}")

    def build(self, build: Build, node: Node) -> Build:
        return replace(
            build,
            tip=Tip(partial(self.bits, node, "tip")),
            ties=lambda n: self.bits(node, "ties").random_raw(n),
        )

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        if found.answer is not None or not np.any(found.allowed):
            return super().result(node, found)
        raw = self.bits(node, "error").random_raw(found.value.size)
        share = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
        with np.errstate(invalid="ignore"):
            off = share.reshape(found.value.shape) * np.asarray(found.allowed)
        # whole numbers come of whole numbers, such as indices computed in floats: those are exact;
        # beyond 2^24 every float32 is one
        counted = (found.value == np.rint(found.value)) & (np.abs(found.value) < 2**24)
        inexact = ~np.isnan(off) & ~counted
        with np.errstate(invalid="ignore"):  # of what an engine shows infinite
            return settled(found.value + np.where(inexact, off, 0.0), node.type)


@dataclass(frozen=True, eq=False)
class Tip:
    """Moves one of the activations by one step of their conversion."""

    begin: Callable[[], Philox]

    @cached_property
    def bits(self) -> Philox:
        return self.begin()  # most nodes convert nothing

    def __call__(self, x: NDArray[Any], converted: F64) -> F64:
        if np.array_equal(converted, x):
            return converted
        row, column = (int(r >> np.uint64(33)) for r in self.bits.random_raw(2))
        return tipped(x, converted, row % (x.size // x.shape[-1]), column % x.shape[-1])
