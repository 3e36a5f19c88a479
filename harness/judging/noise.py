"""The noise floor of an honest run's logits, measured with perturbed runs.

Every op's result is off by a random share of the op's derived bound. In every product that converts
activations, one activation moves to the next step, because a difference in the last bit can change
a rounding. A few such runs are compared with the run without errors. The worst difference of a
logit is the noise floor of this model on these tokens. Rare events, such as two experts with nearly
equal scores, need more runs. So more runs are made before a run counts as divergent.

The golden vectors that ship with Lockstep have this floor. With llama.cpp's graph (graph/floor.py),
sums of products have their probable error, which is smaller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, Formula
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.engine.quants.base import F32
from lockstep.engine.trace import Probe, silent
from lockstep.engine.weights import Weight
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.tolerances import EXACT, Bound, value_and_bound
from lockstep.harness.records import Settings

RUNS = 3
MORE_RUNS = 12  # number of runs before a whole run is called divergent
# for a small model, runs until one chooses like the engine: a choice that one run in 20 makes is
# missed in 1 of 100 cases
RARE_RUNS = 96


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseFloor:
    logits: tuple[F32, ...]  # logits of the run without errors, by batch
    # worst error relative to the largest logit; infinite if a run with errors overflows and the run
    # without errors does not
    relative: float


def random_shares(bits: NDArray[np.uint64]) -> F64:
    """Return numbers from -1 to 1, one for each 64 random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


def tip_activation(x: NDArray[Any], converted: F64, row: int, column: int) -> F64:
    """Return the converted activations, with one moved by one step of the conversion."""
    flat = converted.reshape(-1, converted.shape[-1]).copy()
    exact = x.reshape(flat.shape)
    # a conversion is off by at most half a step, so twice the largest error is one step
    step = 2 * float(np.abs(flat[row] - exact[row]).max())
    flat[row, column] += step if flat[row, column] < exact[row, column] else -step
    return flat.reshape(converted.shape)


class Bounded(np.ndarray[Any, Any]):
    """The result of an op with its bound, until the probe sees it. A value computed from it has the
    bound EXACT."""

    bound: Bound

    def __array_finalize__(self, _: Any) -> None:
        self.bound = EXACT

    @classmethod
    def of(cls, value: NDArray[Any], bound: Bound) -> "Bounded":
        out = value.view(cls)
        out.bound = bound
        return out


def carry_bound(value: NDArray[Any]) -> Bounded:
    """Return the value as an array with a bound. A value without a bound is a copy or a correctly
    rounded result, and gets the bound EXACT."""
    return value if isinstance(value, Bounded) else Bounded.of(value, EXACT)


class BoundedOps(Mirror):
    """llama.cpp's ops, with results that carry their bounds."""

    bounds = True

    def run(self, formula: Formula, *args: Any) -> F32:
        return Bounded.of(*value_and_bound(formula, *args, build=self.build))

    def linear_id(self, x: F32, weight: Weight, ids: I32) -> F32:
        out = np.empty((*ids.shape, weight.shape[1]), np.float32)
        allowed, reason = np.empty(out.shape), ""
        rows = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
        for expert in np.unique(ids):
            chosen = ids == expert
            found = carry_bound(self.linear(rows[chosen], weight.part(int(expert))))
            out[chosen], allowed[chosen], reason = found, found.bound.allowed, found.bound.reason
        return Bounded.of(out, Bound(allowed, reason))


class NoisyOps(BoundedOps):
    """The ops and the probe of an honest engine with random errors."""

    def __init__(self, seed: int, settings: Settings, lanes: int) -> None:
        super().__init__(settings.n_threads, settings.n_ctx, settings.generic, lanes=lanes)
        self.bits = Philox(key=seed)

    def uniform(self, n: int) -> NDArray[np.float64]:
        return random_shares(self.bits.random_raw(n))

    def below(self, n: int) -> int:
        return int(self.bits.random_raw(1)[0] >> np.uint64(33)) % n

    def activations(self, x: F32, weight: Weight) -> F64:
        converted = super().activations(x, weight)
        if np.array_equal(converted, x):
            return converted
        return tip_activation(
            x, converted, *(self.below(n) for n in (x.size // x.shape[-1], x.shape[-1]))
        )

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        bound, value = np.asarray(carry_bound(value).bound.allowed), np.asarray(value)
        if not bound.any():
            return value
        moved: F32 = (value + self.uniform(value.size).reshape(value.shape) * bound).astype(
            np.float32
        )
        return moved


def noise_floor(
    model: Model,
    batches: Sequence[Batch],
    settings: Settings,
    *,
    lanes: int,
    seed: int,
    runs: int = RUNS,
) -> NoiseFloor:
    """Run the batches once without errors and `runs` times with errors, and return the noise
    floor."""
    honest = run(model, batches, Mirror(settings.n_threads, settings.n_ctx, settings.generic))
    worst = 0.0
    for i in range(runs):
        noisy = NoisyOps(seed + i, settings, lanes)
        moved = run(model, batches, noisy, noisy)
        worst = max(worst, *(worst_distance(a, b) for a, b in zip(honest, moved, strict=True)))
    size = max(map(largest, honest), default=0.0)
    # if all logits are zero, there is no noise: sums of zeros are exact in every engine
    return NoiseFloor(logits=honest, relative=worst / size if size else 0.0)


def run(model: Model, batches: Sequence[Batch], ops: Ops, probe: Probe = silent) -> tuple[F32, ...]:
    """Return the logits of each batch, on an empty memory."""
    memory = model.new_memory()
    return tuple(model.decode(batch, memory, probe, ops=ops) for batch in batches)
