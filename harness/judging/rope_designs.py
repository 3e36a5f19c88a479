"""Honest rope angles other than llama.cpp's. llama.cpp computes them from pair to pair by float32
multiplication.

An angle is position * frequency, and a pair's frequency is the same for all tokens and heads. The
exact float32 frequency depends on the C library's pow. So all frequencies within the counted
roundings are tried, and the first that reproduces the shown values is used for each pair. The
result is then as certain as llama.cpp's, with the same bound: angles that are merely close do not
agree.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.near import F64, near
from lockstep.engine.ops.rotation import I32, POW, RopeParams, from_library, from_powers, rope
from lockstep.engine.ops.rotation import rotate as turned_pairs
from lockstep.engine.quants.base import F32
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.designs import GGML, Other
from lockstep.harness.judging.tolerances import Bound, limit_overflow, value_and_bound

AngleOf = Callable[[F32], F32]  # frequencies (pairs,) -> (tokens, pairs)
# the input and the engine's result -> the engine's angles, (tokens, pairs)
AnglesFor = Callable[[F32, NDArray[Any]], NDArray[Any]]


def ways_to_turn(x: F32, positions: I32, params: RopeParams, *_: Any) -> Iterator[Other]:
    """Yield other ways to compute a rotation; none if a number in the angles is zero or not
    finite."""
    numbers = (params.base, params.scale, *factors_of(params))
    if params.kept is not None:
        yield partial(mix_yarn, x, positions, params)
    elif params.base > 0 and all(math.isfinite(n) and n != 0 for n in numbers):
        for angles_for in ways(positions, params):
            yield partial(rotate_by, x, params, angles_for)


def rotate_by(
    x: F32, params: RopeParams, angles_for: AnglesFor, shown: NDArray[Any]
) -> tuple[F32, Bound]:
    def rotations(*_: Any) -> tuple[F64, F64]:
        angles = angles_for(x, shown).astype(np.float64)
        return np.cos(angles) * params.magnitude, np.sin(angles) * params.magnitude

    return value_and_bound(rope, x, (), params, rotations, build=GGML)


def mix_yarn(x: F32, positions: I32, params: RopeParams, shown: NDArray[Any]) -> tuple[F32, Bound]:
    """Return the rotation with YaRN's angles in float64."""
    found = (t[:, None, :] for t in from_powers(positions, params))
    cos, sin = (from_library(t, positions, params, any_way=True) for t in found)
    return limit_overflow(near(turned_pairs(GGML.number(x), cos, sin, *params.pairs())))


def ways(positions: I32, params: RopeParams) -> Iterator[AnglesFor]:
    """Yield ways to compute angles: in float64, in float64 but rounded at the end, and from float32
    frequencies."""
    at = positions.astype(np.float64)[:, None]
    for scale in dict.fromkeys((params.scale, float(np.float32(params.scale)))):
        wide = at * (exact_frequencies(params) * scale / factors_of(params))
        yield partial(angles_given, wide)
        yield partial(angles_given, wide.astype(np.float32))
    for stretch, angle_of in formulas(positions, params):
        for centre, radius in frequencies(params):
            yield partial(fit_frequencies, params, centre * stretch, radius, angle_of)


def factors_of(params: RopeParams) -> F64:
    if params.factors is None:
        return np.ones(params.n_rot // 2)
    return params.factors.astype(np.float64)


def exact_frequencies(params: RopeParams) -> F64:
    exact: F64 = params.base ** (-np.arange(0, params.n_rot, 2) / params.n_rot)
    return exact


def frequencies(params: RopeParams) -> Iterator[tuple[F64, NDArray[np.int64]]]:
    """Yield the frequencies of all pairs, and by how many float32 steps an honest engine may be off
    in each.

    A step is at least one U. The count for a power includes pow or exp, a division, and the
    rounding of the value here. The count for step^i lacks the division, because step is given; step
    itself is tried with several roundings. If frequencies are scaled, there are four more
    roundings: of the scale, of the product with it, of the division by a factor, and of the given
    value. The first pair's frequency is exactly 1 unless it is scaled.
    """
    pairs = np.arange(params.n_rot // 2)
    products = 0 if params.scale == 1 and params.factors is None else 4
    for power in {power.tobytes(): power for power in powers(params)}.values():
        yield power, np.where(pairs > 0, POW + 2, 0) + products
    step = np.float32(params.base ** float(np.float32(-2) / np.float32(params.n_rot)))
    for steps in range(-POW - 1, POW + 2):
        yield (
            move_steps(step, steps).astype(np.float64) ** pairs,
            np.where(pairs > 0, POW + 1, 0) + products,
        )


def powers(params: RopeParams) -> Iterator[F64]:
    """Yield base^-x and exp(-x log(base)) for x = 2i / n, with float32 roundings of their
    arguments."""
    twice = np.arange(0, params.n_rot, 2, dtype=np.float32)
    n, log = np.float32(params.n_rot), np.float32(math.log(params.base))
    yield exact_frequencies(params)
    for x in (twice / n, twice * (np.float32(1) / n)):
        yield params.base ** -x.astype(np.float64)
        yield np.exp(-(x * log).astype(np.float64))
    yield np.exp(-(twice * (log / n)).astype(np.float64))


def formulas(positions: I32, params: RopeParams) -> Iterator[tuple[F64, AngleOf]]:
    """Yield formulas for angles: the scale and factors are in the frequencies, or are applied to
    the angles."""
    at, scale = positions.astype(np.float32)[:, None], np.float32(params.scale)
    factors = factors_of(params)
    yield params.scale / factors, partial(np.multiply, at)
    if scale == 1 and params.factors is None:
        return
    narrow = factors.astype(np.float32)
    yield np.ones(len(factors)), lambda frequency: at * frequency / narrow * scale
    for short in (at * scale, at / np.float32(1 / params.scale)):
        yield 1 / factors, partial(np.multiply, short)


def move_steps(x: NDArray[np.float32] | np.float32, steps: int) -> F32:
    """Return the float32 value that is this many steps further from zero."""
    return (np.asarray(x).view(np.int32) + np.int32(steps)).view(np.float32)


def angles_given(angles: NDArray[Any], x: F32, shown: NDArray[Any]) -> NDArray[Any]:
    return angles


def fit_frequencies(
    params: RopeParams,
    centre: F64,
    radius: NDArray[np.int64],
    angle_of: AngleOf,
    x: F32,
    shown: NDArray[Any],
) -> F32:
    """Return the angles of all pairs. For each pair, use the nearest frequency that reproduces the
    shown values; stop at the first pair without such a frequency."""
    narrow, most = centre.astype(np.float32), int(radius.max())
    nearby = {n: angle_of(move_steps(narrow, n)) for n in sorted(range(-most, most + 1), key=abs)}
    best = nearby[0].copy()
    places = np.stack([np.arange(params.n_rot)[part] for part in params.pairs()], axis=-1)
    alone = replace(params, n_rot=2, halves=False)
    for at, pair, reach in zip(places, range(len(radius)), radius, strict=True):
        for angles in (nearby[n][:, pair : pair + 1] for n in nearby if abs(n) <= reach):
            value, bound = rotate_by(
                x[..., at], alone, partial(angles_given, angles), shown[..., at]
            )
            if mismatch_between(value, shown[..., at], bound.allowed) is None:
                best[:, pair : pair + 1] = angles
                break
        else:
            return best  # later pairs need not be read
    return best
