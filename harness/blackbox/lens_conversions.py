"""Detection of an engine's conversion, by activations between two steps that a lens shows.

Most tokens of a lens have activations that every conversion represents exactly, so that only
weights show. The tokens of this module have activations that conversions round. An honest engine
leaves the activations as they are, or converts all of them in one of the known ways
(judging/conversions.py). An engine that truncates, has fewer steps or keeps scales in fewer bits
gives different logits.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import GENERIC, X86, Converted
from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import SMALLEST, U
from lockstep.engine.ops.products import activation_format, added_up, carries_sums
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.blackbox.behind_the_head import as_logits
from lockstep.harness.blackbox.lens import LARGEST_STEP, Lens, Stretch, bytes_of, row_bytes
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.conversions import Convert, families, is_type_in_blocks
from lockstep.harness.judging.factor_designs import of_activations_in_four_bits
from lockstep.harness.judging.stored import half_step, looks_like
from lockstep.harness.records import Request

MORE = 24  # rounding errors of the norm and of the end of a product, as in lenses.py
MOST_WEIGHTS = 1 << 18  # weights of the lens; all rows see the same converted activations
# logits, and the limit for an honest engine
Known = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class ConversionSeen:
    """The conversion of one engine, found from the logits of the uneven tokens. known: True if a
    known conversion reproduces the logits; convert: the conversion, None for unchanged activations
    or llama.cpp's own conversion; other fields: the logit that differs most under the nearest
    conversion."""

    known: bool
    convert: Convert | None = None
    actual: float = 0.0
    expected: float = 0.0
    allowed: float = 0.0
    mismatched: int = 0

    @property
    def sentence(self) -> str:
        return (
            "no known conversion of activations explains the logits: one is "
            f"{self.actual:.9g}, and the nearest conversion gives {self.expected:.9g} "
            f"(allowed {self.allowed:.1e})"
        )


def conversions_seen(
    context: Context, file: GgufFile, lens: Lens
) -> tuple[ConversionSeen, ConversionSeen] | None:
    """Ask both engines for the uneven tokens of a lens, and return the conversions of the oracle
    and the subject. Return None if products with these weights convert nothing, or if the
    vocabulary is too small for the tokens. Raises NoAnswer."""
    as_stored = [stretch for stretch in lens.stretches if not stretch.small]
    if not (lens.uneven and as_stored and is_type_in_blocks(lens.type)):
        return None
    batch = Batch.of(list(lens.uneven))
    runs = context.ask_both("evaluate", Request(batches=(batch,)))
    weight, rows = some_rows(file, lens, as_stored[0])
    generic = context.settings.generic
    candidates = [
        (convert, logits_of(lens, weight, converted, radius))
        for convert, converted, radius in candidates_for(lens, weight.format, generic)
    ]
    oracle, subject = (seen_of(run.logits[0][:, rows], candidates) for run in runs)
    return oracle, subject


def some_rows(file: GgufFile, lens: Lens, stretch: Stretch) -> tuple[Weight, slice]:
    """Return some rows of a stretch as a matrix, and their indices in the lens."""
    n = max(1, min(stretch.rows, MOST_WEIGHTS // lens.width))
    size = row_bytes(lens)
    raw = bytes_of(file, lens, stretch)[: n * size]
    n = len(raw) // size  # the last row may be filled with zeros
    weight = Weight(
        stretch.tensor, WeightFormat.member(lens.type), (n, lens.width), raw[: n * size]
    )
    return weight, slice(stretch.start, stretch.start + n)


def met_by_head(lens: Lens) -> F32:
    """Return the uneven rows after the last norm, (tokens, width)."""
    rows = lens.embeddings(lens.uneven.start, lens.uneven.stop)
    roots = np.sqrt(np.mean(rows**2, axis=1, keepdims=True))
    found: F32 = (rows / roots * (LARGEST_STEP / lens.period**0.5)).astype(np.float32)
    return found


def candidates_for(
    lens: Lens, kind: type[WeightFormat], generic: Collection[str]
) -> Iterator[tuple[Convert | None, Converted, NDArray[np.float64]]]:
    """Yield each known conversion, with the converted activations and their error in an honest
    engine. The norm's roundings can move an activation to the next step.

    An activation moves only if a larger block contains several sizes, because 127 steps of one size
    are 63.5 steps of the next. So the function changes the sizes a little relative to each other.
    """
    x = met_by_head(lens)
    share = (lens.width + MORE) * U * (lens.sizes - 1)
    around = (x * (1 - share)).astype(np.float32), x, (x * (1 + share)).astype(np.float32)

    def candidate(
        make: Callable[[F32], Converted],
    ) -> tuple[Converted, NDArray[np.float64]]:
        low, found, high = map(make, around)
        ends = np.abs(low.values - found.values), np.abs(high.values - found.values)
        return found, np.maximum(*ends) + np.abs(found.values) * (lens.width + MORE) * U

    yield None, *candidate(lambda some: Converted(some.astype(np.float64)))
    target, sums = activation_format(kind), carries_sums(kind)
    for variant in (GENERIC if target.name in generic else X86, GENERIC, X86):

        def own(some: F32, variant: str = variant) -> Converted:
            made = target.convert(some, variant)
            return Converted(made.values, made.sums if sums else None)

        yield None, *candidate(own)
    ways = [family[0] for family in families(every=True)]
    ways += [each.activations for each in of_activations_in_four_bits() if each.activations]
    for convert in ways:

        def other(some: F32, convert: Convert = convert) -> Converted:
            return Converted(convert(some))

        yield convert, *candidate(other)


def logits_of(
    lens: Lens, weight: Weight, converted: Converted, radius: NDArray[np.float64]
) -> Known:
    """Return the logits for these activations, and their limits, (tokens, rows). Each part of each
    term is rounded, and the terms are added in some order, as in lenses.py."""
    build = Build(lanes=1, plain=converted.sums is None)
    with np.errstate(all="ignore"):
        value, sizes = added_up(converted.values, converted.sums, weight, build, np.float64)
        hot = np.count_nonzero(converted.values, axis=1)[:, None]
        allowed = (2 * hot + MORE) * U * sizes + hot * SMALLEST
        allowed += radius @ np.abs(weight.values()).astype(np.float64).T
    return as_logits(lens.scale, lens.cap, value, allowed)


def seen_of(got: F32, candidates: Sequence[tuple[Convert | None, Known]]) -> ConversionSeen:
    """Return the first conversion that reproduces all these logits, (tokens, rows); the nearest
    conversion if none does."""
    rounded = half_step(got, looks_like([got]))
    nearest, share = ConversionSeen(known=False), np.inf
    for convert, (value, allowed) in candidates:
        limit = allowed + rounded
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.nan_to_num(np.abs(got - value) / limit, nan=np.inf, posinf=np.inf)
        worst = float(off.max(initial=0.0))
        if worst <= 1:
            return ConversionSeen(known=True, convert=convert)
        if worst < share or not isfinite(share):
            at = np.unravel_index(int(off.argmax()), off.shape)
            share = worst
            nearest = ConversionSeen(
                known=False,
                actual=float(got[at]),
                expected=float(value[at]),
                allowed=float(limit[at]),
                mismatched=int(np.count_nonzero(off > 1)),
            )
    return nearest
