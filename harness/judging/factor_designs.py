"""Honest engines that round the factors of their products, as graphics cards do.

A row of the tables has the rounded factors and their formats. Products with weights and attention
have separate rows. An engine has one row of each kind, and both are combined if it shows nothing
between the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from operator import or_
from typing import Any

from lockstep.engine.ops.build import Build, Convert, Factors
from lockstep.harness.judging.conversions import in_bf16, in_bytes, in_halves
from lockstep.harness.judging.small_floats import (
    in_e4m3,
    in_e5m2,
    in_mxfp4,
    in_nvfp4,
    in_tf32,
)

# Share of the distance from float32. Errors that do not come from a design are farther from the
# design's run than from float32: 1.4 times, if both are of the same size. With some thousand
# logits, this share is known to a few percent. Honest engines that round every product had shares
# of 0.0 to 0.95.
NEARER = 0.95
ROWS = frozenset({"rows"})
WEIGHTS = frozenset({"weights", "inputs"})
ATTENTION = frozenset({"queries", "keys", "chances", "values"})


in_row_bytes = partial(in_bytes, size=0)
# TF32 with truncation is not among them. On F16 weights, that is an F16 number that is not rounded,
# which is a mistake that engines have made.
HALVES: dict[str, Convert] = {"F16": in_halves, "BF16": in_bf16, "TF32": in_tf32}
LOSS = {"F16": 2.0**-11, "BF16": 2.0**-8, "TF32": 2.0**-11}  # half a step, relative to the number
EIGHT_BITS: dict[str, Convert] = {"E4M3": in_e4m3, "E5M2": in_e5m2}


@dataclass(frozen=True, kw_only=True)
class FactorDesign:
    """Factors that an engine may round. words: their description in a report; activations: the
    conversion of activations for weights in blocks; few_bits: some factors have at most eight
    bits."""

    words: str
    factors: Factors
    activations: Convert | None = None
    few_bits: bool = False

    def build(self, build: Build) -> Build:
        return replace(build, plain=True, factors=self.factors, activations=self.activations)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the factors that are not float32."""
        more = {"chances"} if self.factors.loss else set()
        more |= {"inputs"} if self.activations else set()
        return frozenset(name for name, _ in changed_factors(self.factors) if name != "loss") | more

    def __or__(self, other: "FactorDesign") -> "FactorDesign":
        """Return the design that combines both designs."""
        words = f"{self.words}, {other.words}"
        given: dict[str, Any] = dict(changed_factors(self.factors)) | dict(
            changed_factors(other.factors)
        )
        return FactorDesign(
            words=words,
            factors=Factors(**given),
            activations=self.activations or other.activations,
            few_bits=self.few_bits or other.few_bits,
        )


def changed_factors(factors: Factors) -> Iterator[tuple[str, Convert | float]]:
    for each in fields(factors):
        value = getattr(factors, each.name)
        if value != each.default:
            yield each.name, value


Part = frozenset[str]  # names of factors that an engine rounds in the same way, or not at all
Parts = dict[Part, FactorDesign]  # the designs of one engine


def of_rows(kind: str) -> FactorDesign:
    return FactorDesign(words=f"embeddings in {kind}", factors=Factors(rows=HALVES[kind]))


def of_weights(kind: str) -> Iterator[FactorDesign]:
    to = HALVES[kind]
    both = Factors(weights=to, inputs=to)
    yield FactorDesign(words=f"weights and activations in {kind}", factors=both)
    yield FactorDesign(words=f"weights in {kind}", factors=Factors(weights=to))


def of_quantised_weights(kind: str) -> Iterator[FactorDesign]:
    """Yield the designs of an engine that decodes quantised weights to this 16-bit type. For other
    weights it may leave activations unconverted, as llama.cpp does on CUDA."""
    yield from of_weights(kind)
    words, to = f"quantised weights and their activations in {kind}", HALVES[kind]
    yield FactorDesign(words=words, factors=Factors(weights=to), activations=to)


def of_attention(kind: str) -> Iterator[FactorDesign]:
    """Yield the designs of attention, the least rounding first, because the first design that
    explains a result is used. Attention weights may be rounded before or after the division by
    their sum."""
    to, loss = HALVES[kind], LOSS[kind]
    for factors in (Factors(chances=to, loss=loss), Factors(loss=loss)):
        yield FactorDesign(words=f"attention weights in {kind}", factors=factors)
    yield FactorDesign(words=f"keys and values in {kind}", factors=Factors(keys=to, values=to))
    rest = Factors(queries=to, keys=to, values=to, loss=loss)
    for factors in (replace(rest, chances=to), rest):
        yield FactorDesign(words=f"attention in {kind}", factors=factors)


def of_attention_in_bytes() -> Iterator[FactorDesign]:
    for kind, to in EIGHT_BITS.items():
        cache = Factors(keys=to, values=to)
        yield FactorDesign(words=f"keys and values in {kind}", factors=cache, few_bits=True)
    words = "queries and keys in bytes, attention weights and values in F16"
    rest = Factors(queries=in_row_bytes, keys=in_row_bytes, values=in_halves, loss=LOSS["F16"])
    for factors in (replace(rest, chances=in_halves), rest):
        yield FactorDesign(words=words, factors=factors, few_bits=True)


def of_activations_in_four_bits() -> Iterator[FactorDesign]:
    for name, to in (("MXFP4", in_mxfp4), ("NVFP4", in_nvfp4)):
        words = f"activations in {name}"
        yield FactorDesign(words=words, factors=Factors(), activations=to, few_bits=True)


# Rows of a table are rounded only by engines that also round all other factors. Rounding only them
# is a mistake.
ROW_DESIGNS = tuple(map(of_rows, HALVES))
DESIGNS: dict[Part, tuple[FactorDesign, ...]] = {
    WEIGHTS: (
        *(each for kind in HALVES for each in of_weights(kind)),
        *of_activations_in_four_bits(),
    ),
    ATTENTION: (
        *(each for kind in HALVES for each in of_attention(kind)),
        *of_attention_in_bytes(),
    ),
}


def designs_throughout() -> Iterator[Parts]:
    """Yield combinations with one format for all products, and with or without rounded
    embeddings."""
    for kind in HALVES:
        both, _ = of_weights(kind)
        for attention in list(of_attention(kind))[-2:]:
            yield {WEIGHTS: both, ATTENTION: attention}
            yield {ROWS: of_rows(kind), WEIGHTS: both, ATTENTION: attention}


def merge(parts: Parts) -> FactorDesign:
    """Return the design that combines these parts."""
    return reduce(or_, parts.values())
