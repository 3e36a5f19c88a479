"""Settings that decide about roundings: llama.cpp's deliberate ones are options with names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.near import F64, Number, exact
from lockstep.engine.ops.sums import in_order

Multiply = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]  # of matrices, or stacks of them
Convert = Callable[[NDArray[np.float32]], F64]
Tip = Callable[[NDArray[Any], F64], F64]


@dataclass(frozen=True, kw_only=True)
class Factors:
    """The formats that an engine rounds factors of products to; None: they stay as they are.

    rows: rows of a table, such as embeddings; weights, inputs: of products with weights; queries,
    keys, chances, values: of attention, whose chances are what the softmax gives. loss: the
    relative error of a softmax weight in an engine that rounds it before dividing by the sum,
    because the largest score is unknown.
    """

    rows: Convert | None = None
    weights: Convert | None = None
    inputs: Convert | None = None
    queries: Convert | None = None
    keys: Convert | None = None
    chances: Convert | None = None
    values: Convert | None = None
    loss: float = 0.0

    def rounds(self, factor: str) -> bool:
        return getattr(self, factor) is not None

    def loss_of(self, factor: str) -> float:
        """Return the share by which this factor may be off, beside its rounding format."""
        return self.loss if factor == "chances" and self.chances is None else 0.0

    def round(self, factor: str, x: NDArray[Any], tip: Tip | None = None) -> NDArray[Any]:
        """Return x in float64, rounded if such factors are rounded. x: an array of any shape."""
        to: Convert | None = getattr(self, factor)
        if to is None:
            return x
        found = to(np.asarray(x, np.float32))
        return found if tip is None or not x.size else tip(x, found)


@dataclass(frozen=True, kw_only=True)
class Build:
    """Roundings that a build and its settings make.

    generic: activation formats that it rounds as ggml's generic C does. AMX, if it lays out
    matrices of F16 for that: their products take activations as they are, where others take halves.
    Names of this model's matrices that it does not lay out. HALVES, if its flash attention computes
    in halves, as AVX512-FP16 does. plain: True for any engine that computes in float32 and is no
    build of ggml. It uses no tables of halves, no conversions, and rounds a sum at every term, in
    any order. multiply: multiplication for the truth. BLAS is fast, but its last bit depends on the
    CPU; `in_order` is for stored values. zeros: True if a product's zero terms count as rounded,
    for bounds that hold for any inputs of a shape. False otherwise. bounds: True if results come
    with a bound. Engines do without, as they only run. sizes: True if products with weights add up
    magnitudes too, of which their bound is a share. Bounds take half of the time, which is wasted
    if nobody reads them. activations: format for activations that meet weights quantised in blocks,
    if plain and the engine has a format of its own. None: they stay as they are. factors: formats
    that the factors of all products are rounded to, if plain. None: no rounding. offsets_apart: if
    plain, True if codes of quantised weights are multiplied as they are, and their offsets and
    minima by sums of activations: d * (sum of q * x - 8 * sum of x), as in Metal. tip: disturbs a
    product's activations, given also as converted. ties: returns that many numbers, which decide
    the order of equal values. None: nothing is disturbed.
    """

    lanes: int  # float32 values in a vector register
    n_threads: int = 1
    generic: tuple[str, ...] = ()
    plain: bool = False
    multiply: Multiply = np.matmul
    zeros: bool = False
    bounds: bool = True
    sizes: bool = True
    activations: Convert | None = None
    factors: Factors | None = None
    offsets_apart: bool = False
    tip: Tip | None = None
    ties: "Callable[[int], NDArray[Any]] | None" = None

    def number(self, x: NDArray[Any]) -> Number:
        """Return x as a number for formulas, with or without a radius."""
        wide = x.astype(np.float64, copy=False)
        return exact(wide) if self.bounds else wide

    def parameter(self, x: float) -> float:
        """Return a float32 in ggml's op_params."""
        return x if self.plain else float(np.float32(x))


ANY_ENGINE = Build(lanes=1, plain=True, multiply=in_order, zeros=True)
