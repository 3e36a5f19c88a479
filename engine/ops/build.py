"""Settings that determine roundings. Deliberate roundings of llama.cpp are named options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.near import F64, Number, exact
from lockstep.engine.ops.sums import in_order

# multiplies matrices or stacks of matrices
Multiply = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
Convert = Callable[[NDArray[np.float32]], F64]
Tip = Callable[[NDArray[Any], F64], F64]


@dataclass(frozen=True, kw_only=True)
class Factors:
    """The formats to which an engine rounds factors of products; None: no rounding.

    rows: rows of a table, such as embeddings; weights, inputs: the factors of products with
    weights; queries, keys, chances, values: the factors of attention, where chances are the results
    of the softmax. loss: the relative error of a softmax weight in an engine that rounds it before
    dividing by the sum. Such a rounding depends on the largest score so far, which is unknown.
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
        """Return the relative error that this factor may have without being rounded to a format."""
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

    generic: activation formats that the build rounds as ggml's generic C code does. It may also
    hold AMX, if the build lays out F16 matrices for AMX: their products use unrounded activations,
    where other builds use halves. Then it may hold names of matrices of this model that are not
    laid out. It may hold HALVES, if flash attention computes in halves, as with AVX512-FP16. plain:
    True for an engine that computes in float32 and is not a build of ggml. Such an engine uses no
    tables of halves and no conversions, and rounds a sum at every term, in any order. multiply:
    multiplication for the reference results. BLAS is fast, but its last bit depends on the CPU;
    `in_order` is for stored values. zeros: True if zero terms of a product count as rounded, for
    bounds that hold for any inputs of a shape. bounds: True if results have a bound, which engines
    do not need. sizes: True if products with weights also add up magnitudes, from which their bound
    is computed. Bounds take half of the time. The following apply only if plain. activations: the
    engine's format for activations that are multiplied by weights quantised in blocks; None: no
    conversion. factors: formats to which factors of all products are rounded; None: no rounding.
    offsets_apart: True if codes of quantised weights are multiplied as they are, and their offsets
    and minima are multiplied by sums of activations: d * (sum of q * x - 8 * sum of x), as in
    Metal.

    tip: changes a product's activations slightly; called with the activations and their converted
    values. ties: returns n numbers that decide the order of equal values. None: no change.
    """

    lanes: int  # number of float32 values in a vector register
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
