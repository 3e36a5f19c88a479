"""The noise floor is seeded, grows with the number of roundings, and exceeds every honest run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.ops.attention import like
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.judging.compare import largest, mismatch_between
from lockstep.harness.judging.noise import BoundedOps, NoiseFloor, carry_bound, noise_floor
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import EXACT
from tests.models import LANES, builtin, opened, some_batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("noise")


def floor_of(path: Path, seed: int = 0, lanes: int = LANES) -> NoiseFloor:
    model = opened(path)
    try:
        return noise_floor(model, some_batches(), EXACT, lanes=lanes, seed=seed)
    finally:
        model.close()


def logits_with(path: Path, ops: Mirror) -> F32:
    model = opened(path, ops=ops)
    memory = model.new_memory()
    return np.concatenate([model.decode(b, memory) for b in some_batches()])


def test_seed_decides_the_noise(folder: Path) -> None:
    path = builtin("q8_0", folder)
    first, again, other = floor_of(path, 5), floor_of(path, 5), floor_of(path, 50)
    assert first.relative == again.relative
    assert first.relative != other.relative
    assert [x.tobytes() for x in first.logits] == [x.tobytes() for x in other.logits]


def test_noise_grows_if_activations_are_converted(folder: Path) -> None:
    """The two models have the same shapes and nearly the same weights. They differ only in the
    conversion of activations."""
    from tests.models import written

    shape: dict[str, Any] = {"seed": 3, "n_layer": 2, "n_embd": 64, "n_ff": 96}
    plain = floor_of(written(folder, "plain.gguf", quant="F32", **shape))
    converted = floor_of(written(folder, "converted.gguf", quant="Q8_0", **shape))
    assert 0 < plain.relative < 1e-4
    assert converted.relative > 3 * plain.relative


def summed(products: F32) -> F32:
    """Return the sums, added one term after the other in float32."""
    return np.cumsum(products, axis=-1, dtype=np.float32)[..., -1]


class Float32(Mirror):
    """An honest engine that rounds every operation to float32."""

    def linear(self, x: F32, weight: Weight) -> F32:
        acts = self.activations(x, weight).astype(np.float32)
        return summed(acts[:, None, :] * weight.values()[None])

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        mean = (summed(x * x) / np.float32(x.shape[-1]))[:, None]
        return x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        wide = like(q, k).transpose(1, 0, 2)
        keys = self.spread(k, q.shape[1]).astype(np.float32)
        return summed(wide[:, :, None, :] * keys[:, None])

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        scores = x * np.float32(scale)
        if visible is not None:
            scores = np.where(visible, scores, np.float32(-np.inf))
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / summed(powers)[..., None]

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        values = self.spread(v, p.shape[0]).astype(np.float32).transpose(0, 2, 1)
        out = summed(like(p, v)[:, :, None, :] * values[:, None])
        return out.transpose(1, 0, 2).reshape(p.shape[1], -1)

    def swiglu(self, gate: F32, up: F32) -> F32:
        return gate / (np.float32(1) + np.exp(-gate)) * up


class Unlucky(BoundedOps):
    """An engine in which each op is off by a random share of its bound, and each conversion rounds
    one number in the wrong direction."""

    def __init__(self, seed: int) -> None:
        super().__init__(EXACT.n_threads, EXACT.n_ctx, lanes=LANES)
        self.draw = np.random.default_rng(seed)

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        bound, value = np.asarray(carry_bound(value).bound.allowed), np.asarray(value)
        if not bound.any():
            return value
        off: F32 = (value + self.draw.uniform(-1, 1, value.shape) * bound).astype(np.float32)
        return off

    def activations(self, x: F32, weight: Weight) -> NDArray[np.float64]:
        out = super().activations(x, weight).copy()
        if np.array_equal(out, x):
            return out
        row = tuple(int(self.draw.integers(n)) for n in out.shape[:-1])
        at = int(self.draw.integers(out.shape[-1]))
        step = 2 * np.abs(out[row] - x[row]).max()
        out[(*row, at)] += step if out[(*row, at)] < x[(*row, at)] else -step
        return out


@pytest.mark.parametrize("name", ["f32", "f16", "q8_0", "moe"])
@pytest.mark.parametrize("seed", range(4))
def test_noise_covers_an_engine_at_its_limits(name: str, seed: int, folder: Path) -> None:
    path = builtin(name, folder)
    floor = floor_of(path)
    truth = np.concatenate(floor.logits)
    ops = Unlucky(seed)
    model = opened(path, ops=ops)
    memory = model.new_memory()
    parts = [model.decode(b, memory, ops) for b in some_batches()]
    model.close()
    bound = whole_run(floor.relative, largest(truth))
    assert mismatch_between(truth, np.concatenate(parts), bound.allowed) is None


class Louder(Float32):
    """An engine whose feed-forward output is too large by a share."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.factor = np.float32(1 + share)

    def swiglu(self, gate: F32, up: F32) -> F32:
        return super().swiglu(gate, up) * self.factor


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q4_0", "moe", "moe-q8_0"])
@pytest.mark.parametrize("seed", [0, 1])
def test_noise_covers_an_engine_that_computes_in_float32(
    name: str, seed: int, folder: Path
) -> None:
    path = builtin(name, folder)
    floor = floor_of(path, seed, lanes=1)
    truth = np.concatenate(floor.logits)
    ours = logits_with(path, Float32())
    bound = whole_run(floor.relative, largest(truth))
    assert not np.array_equal(truth, ours)  # the computation is another one
    assert mismatch_between(truth, ours, bound.allowed) is None


@pytest.mark.parametrize(
    ("name", "share"),
    # conversions of activations may tip after a last-bit error, so logits show less, and the judge
    # of single ops shows the rest
    [("f32", 1e-4), ("moe", 1e-3), ("f16", 0.01), ("bf16", 0.1), ("q8_0", 0.1), ("q4_0", 0.1)],
)
def test_noise_does_not_cover_a_fault(name: str, share: float, folder: Path) -> None:
    path = builtin(name, folder)
    floor = floor_of(path, lanes=1)
    truth = np.concatenate(floor.logits)
    bound = whole_run(floor.relative, largest(truth))
    assert mismatch_between(truth, logits_with(path, Louder(share)), bound.allowed) is not None
