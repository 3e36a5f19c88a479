"""Choices that the definition leaves open, and points where llama.cpp deviates from it.

In the definition, equal elements keep their order, and functions and sums are exact except for one
rounding. llama.cpp uses the order of libstdc++, libm's functions, and float32 sums, one term after
the other. Each accidental behaviour of llama.cpp in rare cases is a named `Accident`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.samplers.parts import libm
from lockstep.engine.samplers.parts.candidates import F32, CandidateList, F, Number
from lockstep.engine.samplers.parts.libstdcxx import (
    HEAP,
    INT_END,
    SCALE,
    Places,
    sort_all,
    top_order,
)

# numbers of candidates; llama.cpp's top-p sorts only a part of a large list at first
LARGE_LIST, FIRST_PART = 1024, 256


class EqualsOrder(Enum):
    """Order of equal elements."""

    STABLE = "stable"
    LIBSTDCXX = "libstdc++"


class Functions(Enum):
    """Library that computes exp, log and pow."""

    DOUBLE = "float64, rounded once"
    LIBM = "libm's functions of single floats"


class SumPrecision(Enum):
    """Precision in which numbers are added up."""

    DOUBLE = "float64, rounded once"
    IN_TURN = "float32, one after the other"


class Accident(Enum):
    """Behaviour of llama.cpp (llama-cpp-python 0.3.36) that no definition states."""

    BUCKET_OVERFLOW = "sorting with k above 128 puts a logit beyond 3.4e8 last"
    TYPICAL_ZERO = "a p of zero makes typical's entropy NaN"
    STALE_SORTED = "logit_bias leaves the list marked as sorted"
    BIAS_ONCE = "a second bias of one token is lost in a list that is not in the order of ids"
    MIROSTAT_OVERFLOW = "a k beyond an int becomes 1"
    MIROSTAT_ZERO = "a p of zero among the m likeliest makes k 1"
    SIGMA_OVERFLOW = "squares beyond float32 make the deviation infinite"
    GRAMMAR_ANY_BYTES = "a grammar reads bytes that are not valid UTF-8 as characters"
    GRAMMAR_HALF_NEGATED = (
        "a negated class refuses half a character that may become an excluded one"
    )
    GRAMMAR_LITERAL_INSIDE = "a grammar compares a token with a literal that it reaches inside"
    GRAMMAR_LITERAL_BYTES = "a grammar's literal refuses its token if that is not a whole character"
    GRAMMAR_END_INSIDE = "a grammar lets a text end within a character"
    ADAPTIVE_CLONE = "a clone of adaptive_p starts its draws anew"


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Choices that implementations make differently; the default is the definition."""

    order: EqualsOrder = EqualsOrder.STABLE
    functions: Functions = Functions.DOUBLE
    sums: SumPrecision = SumPrecision.DOUBLE
    accidents: frozenset[Accident] = frozenset()

    # --- order ------------------------------------------------------------------------------

    def descending(self, logits: F32, k: int) -> Places:
        """Return the indices of the k largest logits, the largest first."""
        overflows = Accident.BUCKET_OVERFLOW in self.accidents
        if self.order is EqualsOrder.LIBSTDCXX:
            return top_order(logits, k, overflows=overflows)
        keys = logits
        if overflows and k > HEAP:
            keys = np.where(np.abs(SCALE * logits) < INT_END, logits, F(-np.inf))
        return np.argsort(-keys, kind="stable")[:k]

    def ascending(self, scores: F32) -> Places:
        if self.order is EqualsOrder.LIBSTDCXX:
            return sort_all(-scores)
        return np.argsort(scores, kind="stable")

    def parts_to_sort(self, n: int) -> Iterable[int]:
        """Return how many of n candidates top-p sorts in each attempt, until they are enough."""
        if self.order is EqualsOrder.LIBSTDCXX and n > LARGE_LIST:
            return FIRST_PART, n
        return (n,)

    def sort(self, c: CandidateList) -> CandidateList:
        if c.sorted:
            return c
        return c.take(self.descending(c.logits, len(c)), sorted=True)

    # --- functions --------------------------------------------------------------------------

    def exp(self, x: F32) -> F32:
        return self._function("expf", np.exp, x)

    def log(self, x: F32) -> F32:
        return self._function("logf", np.log, x)

    def log2(self, x: F32) -> F32:
        return self._function("log2f", np.log2, x)

    def log_of(self, x: Number) -> np.float32:
        return F(self.log(np.array([x], F))[0])

    def log2_of(self, x: Number) -> np.float32:
        return F(self.log2(np.array([x], F))[0])

    def pow(self, a: Number, b: Number) -> np.float32:
        if self.functions is Functions.LIBM:
            return libm.binary("powf")(float(a), float(b))
        return F(np.power(np.float64(a), np.float64(b)))

    def _function(self, name: str, exact: Callable[[Any], Any], x: F32) -> F32:
        if self.functions is Functions.LIBM:
            return libm.unary(name)(x)
        return np.asarray(exact(x.astype(np.float64)), F)

    # --- sums -------------------------------------------------------------------------------

    def running(self, terms: NDArray[Any]) -> NDArray[Any]:
        """Return the sums of the first 1, 2, ... terms."""
        kind = np.float32 if self.sums is SumPrecision.IN_TURN else np.float64
        return np.add.accumulate(terms, dtype=kind)

    def total(self, terms: NDArray[Any]) -> np.float32:
        return F(self.running(terms)[-1]) if len(terms) else F(0)

    # --- first steps of most samplers ----------------------------------------------------------

    def softmax(self, c: CandidateList, *, sort: bool) -> CandidateList:
        """Return the list with probabilities, sorted first if `sort` is true."""
        c = self.sort(c) if sort else c
        e = self.exp(c.logits - self.largest(c))
        return c.change(p=np.asarray(e / self.total(e), F))

    def largest(self, c: CandidateList) -> np.float32:
        return F(c.logits[0]) if c.sorted else running_max(c.logits)


def running_max(values: F32) -> np.float32:
    """Return the largest value as std::max finds it: a NaN in first place is the result."""
    if np.isnan(values[0]):
        return F(values[0])
    return F(np.fmax.reduce(values))


DEFINITION = Ways()
LLAMA_CPP = Ways(
    order=EqualsOrder.LIBSTDCXX,
    functions=Functions.LIBM,
    sums=SumPrecision.IN_TURN,
    accidents=frozenset(Accident),
)
