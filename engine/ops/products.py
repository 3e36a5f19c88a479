"""Products with a weight matrix, split into steps and minima as in ggml, with ggml's roundings.

A weight with a minimum is scale * step - minimum (or plus). The activations multiply its block's
steps, and their sums multiply its minima. With Q8_1, these sums are not the sums of the values but
stored sums, rounded to half. The two products may cancel each other, so a bound needs both.

Steps and minima come from the format's own decoder. If `d` is set to zero, a block decodes to its
minima. If `m` or `dmin` is set to zero, it decodes to its scaled steps.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import AMX, F64, GENERIC, X86, ActivationFormat, Converted
from lockstep.engine.errors import Unsupported
from lockstep.engine.kernels.threads import each
from lockstep.engine.ops import few_integers, integers
from lockstep.engine.ops import rows as by_row
from lockstep.engine.ops.build import Build, Multiply
from lockstep.engine.ops.near import LARGEST, SMALLEST, Near, Number, U
from lockstep.engine.ops.roundings import product_roundings
from lockstep.engine.quants.base import F32, NO_PRODUCT, WeightFormat
from lockstep.engine.weights import Weight

Factors = tuple[F64, F32]  # (tokens, k) and (rows, k); products are summed over k

MINIMA = ("m", "dmin")  # ggml's names of the scales of minima
FEW = 4  # number of tokens
# numbers of tokens up to which reading weights as integers is faster than unpacking them once
FEW_AS_INTEGERS, FEW_WITH_MINIMA = 8, 32
WORTH_THREADS = 1 << 24  # number of multiplications; below it, Python takes most of the time
MORE = 1 + 2.0**-40  # covers the rounding errors of float64 sums
INTEGERS = 1 << 19  # number of weights at a time, of one or two bytes
UNPACKING = 16  # number of multiplications that take as long as unpacking a weight
# factor for ggml's separate products with grid and shift; they are at most 9 to 7 of |grid + shift|
APART = {"IQ1_S": 9 / 7, "IQ1_M": 9 / 7}
# Types whose unsigned codes ggml's vector code multiplies. The offset that makes codes signed,
# times sums of activations, is subtracted in other lanes, so both parts are rounded.
UNSIGNED = {"Q6_K": ("ql", "qh"), "TQ1_0": ("qs", "qh"), "TQ2_0": ("qs",)}
# all types whose weights are codes minus an offset or a minimum, and the fields of their codes
LESS_OFFSET = UNSIGNED | {
    "Q4_0": ("qs",),
    "Q4_1": ("qs",),
    "Q5_0": ("qs", "qh"),
    "Q5_1": ("qs", "qh"),
    "Q2_K": ("qs",),
    "Q3_K": ("qs", "hmask"),
    "Q4_K": ("qs",),
    "Q5_K": ("qs", "qh"),
}
OFFSETS_APART = 3  # rounding errors of two scales, and of the sum of both parts


def activation_format(kind: type[WeightFormat]) -> type[ActivationFormat]:
    """Return the format that activations are converted to for weights of this kind."""
    if kind.vec_dot_type == NO_PRODUCT:
        raise Unsupported(f"llama.cpp has no product with a matrix of type {kind.name}")
    return ActivationFormat.member(kind.vec_dot_type)


def convert(x: F32, kind: type[WeightFormat], generic: Collection[str] = ()) -> Converted:
    """Return x: (..., n) as a product reads it; `generic`: formats rounded as in generic C."""
    target = activation_format(kind)
    return target.convert(x, GENERIC if target.name in generic else X86)


def is_in_blocks(kind: type[WeightFormat]) -> bool:
    """Return True if activations become blocks with scales before they meet these weights."""
    named = kind.vec_dot_type != NO_PRODUCT
    return named and activation_format(kind).layout.names is not None


def minimum_of(kind: type[WeightFormat]) -> str | None:
    """Return the field that scales the minima of a block, if its weights have any."""
    return next((name for name in MINIMA if name in (kind.layout.names or ())), None)


def run_of(kind: type[WeightFormat]) -> int:
    """Return how many consecutive weights share all scales, and are summed as integers."""
    scales = math.prod(kind.layout["d"].shape) if "d" in (kind.layout.names or ()) else 1
    return min(kind.weights // scales, activation_format(kind).block)


def factors(
    acts: F64, sums: F64 | None, weight: Weight, *, apart: bool = True
) -> Iterator[tuple[slice, tuple[Factors, ...]]]:
    """Yield ranges of rows with the pairs whose products make up the result.

    acts: (tokens, columns) as converted; sums: the sums that the activation format stores, or None
    if they equal the sums of the values; apart: multiply steps and minima separately, as in ggml.
    """
    left = left_factors(acts, sums, weight, apart=apart)
    for rows in weight.runs():
        yield rows, tuple(zip(left, right_factors(weight, rows, apart=apart), strict=True))


def left_factors(acts: F64, sums: F64 | None, weight: Weight, *, apart: bool) -> list[F64]:
    """Return the activations, and the sums by which minima are multiplied."""
    if not apart or minimum_of(weight.format) is None:
        return [acts]
    group = activation_format(weight.format).summed
    if sums is None:
        sums = acts.reshape(len(acts), acts.shape[-1] // group, group).sum(axis=-1)
    return [acts, sums]


def right_factors(weight: Weight, rows: slice, *, apart: bool) -> list[F32]:
    """Return decoded rows, (rows, columns), or (`apart`) their steps, and the minima of each
    group."""
    minimum = minimum_of(weight.format) if apart else None
    if minimum is None:
        return [weight.rows(rows.start, rows.stop)]
    group = activation_format(weight.format).summed
    return [without(weight, rows, minimum), without(weight, rows, "d")[:, ::group]]


def without(weight: Weight, rows: slice, *fields: str) -> F32:
    """Decode these rows with some fields of every block set to zero: (rows, columns)."""
    raw = weight.raw[rows.start * weight.row_bytes : rows.stop * weight.row_bytes]
    blocks = raw.copy().view(weight.format.layout)
    for field in fields:
        blocks[field] = 0
    return weight.format.dequantize(blocks.view(np.uint8)).reshape(-1, weight.shape[-1])


def multiply_pairs(pairs: Iterable[Factors], multiply: Multiply = np.matmul) -> F64:
    """Return the sum of the pairs' products in float64: (tokens, rows)."""
    with np.errstate(invalid="ignore", over="ignore"):  # activations may be infinite
        return reduce(np.add, (multiply(a, w.astype(np.float64).T) for a, w in pairs))


def linear(
    x: F32,
    weight: Weight,
    activations: Callable[[F32, Weight], F64],
    sums: Callable[[F32, Weight], F64 | None],
    build: Build,
) -> Number | F32:
    """Return `x @ weight.T`, rounded to float32. x: (tokens, columns); weight: (rows, columns).

    activations, sums: functions that return x as the product reads it, and the sums stored with x.
    """
    acts, carried = activations(x, weight), sums(x, weight)
    if build.bounds:
        return bounded_product(acts, carried, weight, build)
    return added_up(acts, carried, weight, build)[0]


def convert_activations(x: F32 | F64, weight: Weight, build: Build) -> Converted:
    """Return activations in the weight's `vec_dot_type`, and its stored sums, if any."""
    kind = weight.format
    if build.plain and build.activations is not None and is_in_blocks(kind):
        converted = build.activations(np.asarray(x, np.float32))
        return Converted(converted if build.tip is None else build.tip(x, converted))
    if build.plain or is_for_amx(weight, build):
        return Converted(x.astype(np.float64))
    found = convert(np.asarray(x, np.float32), kind, build.generic)
    values = found.values if build.tip is None else build.tip(x, found.values)
    return Converted(values, found.sums if carries_sums(kind) else None)


def is_for_amx(weight: Weight, build: Build) -> bool:
    """Return True if the build lays out this F16 matrix for AMX; never a cache or experts.

    Source: supports_op in ggml-cpu/amx/amx.cpp of llama.cpp in llama-cpp-python 0.3.36.
    """
    if AMX not in build.generic or weight.format.name != "F16":
        return False
    rows, columns = weight.shape[-2:]
    # GroveMoE's experts are named _chexps
    named = weight.name.endswith(".weight") and "exps" not in weight.name
    named = named and weight.name not in build.generic
    return named and rows % 32 == 0 and columns % 16 == 0


def carries_sums(kind: type[WeightFormat]) -> bool:
    """Return True if activations for these weights have sums other than those of their values."""
    return kind.vec_dot_type == "Q8_1"


def bounded_product(
    acts: F64, sums: F64 | None, weight: Weight, build: Build, dtype: Any = np.float32
) -> Near:
    """Return a bounded product, (tokens, rows). acts: (tokens, columns); dtype: of products.

    A product with zero and a sum with zero are exact in any order. So only terms (runs of integers)
    that are not zero are counted.
    """
    value, size = added_up(acts, sums, weight, build, dtype)
    run = 1 if build.plain else run_of(weight.format)
    nonzero = None if build.zeros else count_filled_runs(acts, run)
    wide = value.astype(np.float64, copy=False)
    return summed_products(wide, size, weight.shape[-1], build, run, nonzero)


def of_floats(a: F64, b: F64, build: Build) -> Number:
    """Multiply (.., m, k) and (.., k, n) -> (.., m, n) in float32."""
    value = build.multiply(a, b)
    if not build.bounds:
        return value
    size = build.multiply(np.abs(a), np.abs(b))
    return summed_products(value, size, a.shape[-1], build)


def summed_products(
    value: F64,
    size: F64,
    terms: int,
    build: Build,
    run: int = 1,
    nonzero: NDArray[Any] | None = None,
) -> Near:
    """Return `value`, a sum of `terms` terms, with its bound. size: the sum of the terms'
    magnitudes; run: the number of consecutive terms that are multiplied as integers; nonzero: the
    number of runs that are not zero."""
    most = np.asarray(terms // run if nonzero is None else nonzero)
    roundings = product_roundings(terms, build.lanes, run, most)
    if build.offsets_apart:
        roundings = roundings + OFFSETS_APART
    # a partial sum may overflow, while another order of addition stays within float32
    r = np.where(size > LARGEST, np.inf, roundings * U * size + (terms - 1) * SMALLEST)
    what = "integer products" if run > 1 else "products"
    lanes = "" if run > 1 else f" in {build.lanes} lanes"
    reason = f"{most.max(initial=0)} {what} summed in float32{lanes}"
    return Near(value, r, f"{reason}, {roundings.max(initial=0)} roundings")


def count_filled_runs(acts: F64, run: int) -> NDArray[Any]:
    """Return how many runs of inputs are not all zeros: (tokens, inputs) -> (tokens, 1)."""
    runs = acts.reshape(len(acts), acts.shape[-1] // run, run)
    counts: NDArray[Any] = runs.any(axis=-1).sum(axis=-1, keepdims=True)
    return counts


def added_up(
    acts: F64, sums: F64 | None, weight: Weight, build: Build, dtype: Any = np.float32
) -> tuple[NDArray[Any], F64]:
    """Return the product summed in float64, (tokens, rows). Also return the sum of its terms'
    magnitudes, or slightly more, for a bound."""
    shape = len(acts), weight.shape[0]
    floats = adds_floats(weight, build)
    if not (floats or build.bounds) and len(acts) <= few_as_integers(weight.format):
        value = by_few_integers(acts, sums, weight, build)
        if value is not None:
            with np.errstate(over="ignore"):
                return value.astype(dtype, copy=False), np.empty(0)
    if len(acts) <= FEW and build.multiply is np.matmul and by_row.takes(weight.format):
        return by_rows(acts, sums, weight, build, np.float64 if floats and build.bounds else dtype)
    out = np.empty(shape, np.float64 if floats and build.bounds else dtype)
    size = np.empty(shape if build.bounds else 0)
    left = left_factors(acts, sums, weight, apart=not build.plain)
    whole = None if floats else whole_steps(acts, weight, build)
    sized = build.bounds and not floats
    small = [np.abs(a).astype(np.float32) for a in (*left, acts)] if sized else []

    def run(rows: slice) -> None:
        found = None if whole is None else by_integers(whole, left, weight, rows, build)
        value, magnitudes = found or by_floats(left, small, weight, rows, build)
        with np.errstate(over="ignore"):
            out[:, rows] = value
        if build.bounds:
            size[:, rows] = magnitudes

    runs = list(weight.runs() if whole is None else weight.runs(INTEGERS))
    if (len(acts) + UNPACKING) * math.prod(weight.shape) < WORTH_THREADS:
        for rows in runs:
            run(rows)
    else:
        each(run, runs)
    return out, size if floats else size * APART.get(weight.format.name, 1.0)


def few_as_integers(kind: type[WeightFormat]) -> int:
    return FEW_WITH_MINIMA if minimum_of(kind) == "dmin" else FEW_AS_INTEGERS


def by_few_integers(acts: F64, sums: F64 | None, weight: Weight, build: Build) -> F64 | None:
    """Return the product of few tokens, computed with integers, or None if not possible."""
    kind = weight.format
    if build.multiply is not np.matmul or not few_integers.takes(kind):
        return None
    steps = integers.steps_of(acts, run_of(kind), in_bytes=integers.in_bytes(kind))
    return None if steps is None else few_integers.product(steps, sums, weight)


def by_rows(
    acts: F64, sums: F64 | None, weight: Weight, build: Build, dtype: Any
) -> tuple[NDArray[Any], F64]:
    """Return the product of few tokens, computed row by row, which saves time."""
    apart, floats = not build.plain, adds_floats(weight, build)
    minimum = minimum_of(weight.format) if apart else None
    left = left_factors(acts, sums, weight, apart=apart)
    parts = [by_row.RowPart(left[0], (minimum,) if minimum else ())]
    if minimum:
        group = activation_format(weight.format).summed
        if group == weight.format.weights:  # each block has a minimum, which is stored unchanged
            parts.append(by_row.RowPart(left[1], half=minimum))
        else:
            parts.append(by_row.RowPart(left[1], ("d",), stride=group))
    codes = codes_alone(weight, build)
    if codes and build.bounds:
        parts.append(by_row.RowPart(acts, codes, value=False, times=2.0))
    value, size = by_row.products(parts, weight, sizes=build.bounds)
    with np.errstate(over="ignore"):
        out = value.astype(dtype)
    return out, size if floats else size * APART.get(weight.format.name, 1.0) * MORE


def adds_floats(weight: Weight, build: Build) -> bool:
    """Return True if each product of two numbers is rounded, because no factor is an integer."""
    return build.plain or weight.format.name in ("F32", "F16")


def codes_alone(weight: Weight, build: Build) -> tuple[str, ...]:
    """Return the fields of codes whose sums the build adds up separately from their offset."""
    if build.plain:
        return LESS_OFFSET.get(weight.format.name, ()) if build.offsets_apart else ()
    return UNSIGNED.get(weight.format.name, ())


def by_floats(
    left: list[F64], small: list[F32], weight: Weight, rows: slice, build: Build
) -> tuple[F64, F64 | None]:
    """Multiply by decoded rows. small: magnitudes of `left`, then of the activations again."""
    right = right_factors(weight, rows, apart=not build.plain)
    pairs = tuple(zip(left, right, strict=True))
    value = multiply_pairs(pairs, build.multiply)
    if not build.bounds:
        return value, None
    added = (*pairs, *offsets(left[0], weight, rows, build))
    if adds_floats(weight, build):
        return value, multiply_pairs([(np.abs(a), np.abs(w)) for a, w in added], build.multiply)
    rounded = [*small[:-1], *(small[-1] for _ in added[len(pairs) :])]
    return value, magnitude(rounded, added, build.multiply)


def by_integers(
    whole: integers.Steps,
    left: list[F64],
    weight: Weight,
    rows: slice,
    build: Build,
) -> tuple[F64, F64 | None] | None:
    """Return the product with these rows, computed with integers; None if not possible."""
    kind, minimum = weight.format, minimum_of(weight.format)
    group = activation_format(kind).summed
    right = integers.rows_of(weight, rows, run_of(kind), group, minimum)
    if right is None:
        return None
    sums = left[1] if minimum else None
    value, size = integers.product(whole, sums, right, sizes=build.bounds)
    if size is None:
        return value, None
    if codes := codes_alone(weight, build):  # all weights of a group share the offset
        apart = np.abs(without(weight, rows, *codes)[:, :: integers.GROUP]).astype(np.float64)
        size = size + 2 * whole.sizes @ apart.T
    return value, size * MORE


def whole_steps(acts: F64, weight: Weight, build: Build) -> integers.Steps | None:
    """Return the activations as integers, or None if no integer products are used."""
    kind = weight.format
    if len(acts) <= FEW or build.multiply is not np.matmul or not integers.takes(kind):
        return None
    if not is_in_blocks(kind):
        return None
    return integers.steps_of(acts, run_of(kind), in_bytes=integers.in_bytes(kind))


def offsets(acts: F64, weight: Weight, rows: slice, build: Build) -> tuple[Factors, ...]:
    """Return factors for the offset of unsigned codes, which is added and subtracted again."""
    codes = codes_alone(weight, build)
    if not codes:
        return ()
    return ((acts, 2 * without(weight, rows, *codes)),)


def magnitude(left: list[F32], pairs: tuple[Factors, ...], multiply: Multiply) -> F64:
    """Bound the sum of |a| * |w|: (tokens, rows); left: the |a|, rounded. Overwrites the w.

    The result only scales a bound, so float32 is enough and takes half the time. No term is
    negative. So with n terms, float32 loses at most n + 2 roundings (each |a|, each product, n - 1
    additions and the addition of the second pair). Twice that share is added back: the loss is a
    share of the exact sum, not of the float32 sum. If float32 overflows, float64 repeats the sum.
    """
    terms = sum(a.shape[-1] for a in left)
    right = [np.abs(w, out=w) for _, w in pairs]
    with np.errstate(invalid="ignore", over="ignore"):
        found: F32 = reduce(np.add, (multiply(a, w.T) for a, w in zip(left, right, strict=True)))
    if not np.isfinite(found).all():
        wide = [(np.abs(a), w) for (a, _), w in zip(pairs, right, strict=True)]
        return multiply_pairs(wide, multiply)
    size = found.astype(np.float64)
    size *= 1 + 2 * (terms + 2) * U
    return size
