"""Honest engines of other designs are in agreement, and wrong ones beside them are not.

The prompt begins at position 290, where angles of another design are several bounds apart.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.batch import Batch
from engine.gguf_file import GgufFile
from engine.ops.mirror import Mirror
from engine.ops.near import F64, U
from engine.ops.reference import I32, RopeParams
from engine.quants.base import F32
from engine.registry import import_members
from harness.adapters import adapter_class
from harness.adapters.base import Adapter
from harness.adapters.reference import Reference
from harness.designs import chosen, order_of
from harness.honest.base import Honest
from harness.honest.experts_by_id import ById, ExpertsById
from harness.honest.rope_float64 import WideAngles
from harness.honest.rope_inverse_frequency import InverseFrequency
from harness.honest.rope_power import Power
from harness.honest.silu_exp2 import ByExp2
from harness.honest.silu_tanh import ByTanh
from harness.honest.sums_one_by_one import OneByOne
from harness.judge import Judge, SiteFinding, conforms
from harness.noise import carried
from harness.records import EXACT, PRESETS, Settings, Site
from harness.rope_designs import ways_to_turn
from tests.models import LANES, Values, builtin, judged, traced

import_members("harness.honest")
DESIGNS = sorted(name for name, cls in Adapter.family.items() if issubclass(cls, Honest))
MODELS = ("f32", "bf16", "q4_0", "moe", "moe-q8_0")  # bf16: rope_freqs; q4_0: a linear factor
START = 290
TOKENS = [(7 * i * i + 11) % 384 for i in range(13)]
FAR = (Batch.of(TOKENS[:12], start=START), Batch.of(TOKENS[12:], start=START + 12))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("honest")


@cache
def oracle_of(path: Path, settings: Settings, make: Any = Reference) -> Values:
    return traced(path, settings, make=make, batches=FAR)


def guilty(
    path: Path, make: Any, settings: Settings = EXACT, oracle_is: Any = Reference
) -> list[SiteFinding]:
    """What engines are accused of, one on the other's values, as `trace` asks."""
    oracle = oracle_of(path, settings, oracle_is)
    local = traced(path, settings, replace=oracle, make=make, batches=FAR)
    judge = judged(path, oracle, local, settings, batches=FAR)
    return [finding for finding in judge.findings if finding.mismatch is not None]


def names(findings: list[SiteFinding]) -> set[str]:
    return {finding.site.name for finding in findings}


def with_ops(ops: type[Mirror]) -> Any:
    class Engine(Reference):
        def make_ops(self) -> Mirror:
            return ops(self.settings.n_threads, self.settings.n_ctx, self.settings.generic)

    return Engine


def judge() -> Judge:
    return Judge({}, {}, lanes=LANES, n_threads=1, n_ctx=512)


def normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- honest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("design", "model"),
    [(d, m) for d in DESIGNS for m in MODELS if "experts" not in d or m.startswith("moe")],
)
def test_no_honest_design_is_accused(design: str, model: str, preset: str, folder: Path) -> None:
    assert guilty(builtin(model, folder), adapter_class(design), PRESETS[preset]) == []


@pytest.mark.parametrize("subject", ["reference", "honest:silu-tanh"])
@pytest.mark.parametrize("design", DESIGNS)
def test_no_honest_design_is_accused_as_an_oracle(design: str, subject: str, folder: Path) -> None:
    path = builtin("moe-q8_0", folder)
    engines = [adapter_class(name) for name in (subject, design)]
    assert guilty(path, engines[0], oracle_is=engines[1]) == []


@pytest.mark.parametrize("design", ["honest:rope-float64", "honest:silu-tanh"])
def test_a_wrong_engine_beside_an_oracle_of_another_design_is_found(
    design: str, folder: Path
) -> None:
    path, oracle = builtin("moe-q8_0", folder), adapter_class(design)
    for wrong, at in ((PositionOff, {"Qcur_rope", "Kcur_rope"}), (WeightOff, {MOE_NORM})):
        found = guilty(path, with_ops(wrong), oracle_is=oracle)
        assert names(found) == at
        assert {finding.at_fault for finding in found} == {"subject"}
        swapped = guilty(path, oracle, oracle_is=with_ops(wrong))
        assert (names(swapped), {f.at_fault for f in swapped}) == (at, {"oracle"})


@pytest.mark.parametrize("design", [d for d in DESIGNS if d != "honest:experts-last-of-ties"])
def test_a_design_computes_other_numbers_than_the_reference(design: str, folder: Path) -> None:
    cls = adapter_class(design)
    assert issubclass(cls, Honest)
    path = builtin(cls.shows_on, folder)
    oracle = oracle_of(path, EXACT)
    local = traced(path, replace=oracle, make=cls, batches=FAR)
    assert any(not np.array_equal(oracle[site], local[site]) for site in oracle)


def with_equal_experts(model: Path, copy: Path) -> Path:
    """A copy whose router cannot tell the first two experts, nor the last two."""
    raw = bytearray(model.read_bytes())
    with GgufFile.open(model) as file:
        for name, info in file.tensors.items():
            if name.endswith("ffn_gate_inp.weight"):
                row, start = 4 * info.ne[0], file.data_offset + info.offset
                for k in (0, info.ne[1] - 2):
                    at = start + k * row
                    raw[at : at + row] = raw[at + row : at + 2 * row]
    copy.write_bytes(raw)
    return copy


@pytest.mark.parametrize("model", ["moe", "moe-q8_0"])
def test_a_tie_between_experts_may_end_either_way(model: str, folder: Path) -> None:
    path = with_equal_experts(builtin(model, folder), folder / f"equal-{model}.gguf")
    cls = adapter_class("honest:experts-last-of-ties")
    oracle = oracle_of(path, EXACT)
    other = traced(path, make=cls, batches=FAR)
    site = Site(step=0, layer=0, name="ffn_moe_topk")
    assert not np.array_equal(oracle[site], other[site])
    assert guilty(path, cls) == []
    # the other way round: it is the oracle that takes the last
    back = traced(path, replace=other, batches=FAR)
    assert [f for f in judged(path, other, back, batches=FAR).findings if f.mismatch] == []


FACTORS = (1 + np.random.default_rng(0).integers(0, 57, 32) / 8).astype(np.float32)
ROPES = [
    RopeParams(64, 1e4, 1.0, None),
    RopeParams(64, 5e5, 1 / 3, None),
    RopeParams(64, 1e4, 0.125, FACTORS),
    RopeParams(64, 1234567.0, 1.0, FACTORS),
    RopeParams(6, 100.0, 1.0, None),
    RopeParams(32, 1e4, 1 / 3, FACTORS[:16]),  # the scale and the factors are rounded as well
]
WAYS = (InverseFrequency, Power, WideAngles)
POSITIONS = np.r_[np.arange(4), np.arange(294, 300), np.arange(30000, 30006)].astype(np.int32)
MOE_NORM = "ffn_moe_weights_norm"
LAST = 9  # of POSITIONS: 299
ropes = pytest.mark.parametrize(
    "params", ROPES, ids=lambda p: f"{p.n_rot}-{p.base:g}-{p.scale:.2g}"
)


def turns_well(shown: F32, x: F32, params: RopeParams) -> bool:
    ops = judge()
    truth = carried(ops.rope(x, POSITIONS, params))
    return conforms(shown, truth, truth.bound, truth.others())


def rotated_with(ops: Mirror, x: F32, params: RopeParams, positions: I32 = POSITIONS) -> F32:
    return ops.rope(x, positions, params)


@pytest.mark.parametrize("way", WAYS)
@ropes
def test_angles_in_any_way_are_honest_up_to_tens_of_thousands(
    way: type[Mirror], params: RopeParams
) -> None:
    x = normal(1, len(POSITIONS), 4, params.n_rot)
    shown = rotated_with(way(), x, params)
    ops = judge()
    truth = carried(ops.rope(x, POSITIONS, params))
    assert not conforms(shown, truth, truth.bound, ())  # it is not llama.cpp's recursion
    assert turns_well(shown, x, params)


@ropes
def test_elements_next_to_nothing_do_not_hide_the_frequency(params: RopeParams) -> None:
    """Their bound is far below the roundings of the large elements beside them."""
    x = normal(1, len(POSITIONS), 4, params.n_rot)
    x[:, ::2, 1::2] = 0
    assert turns_well(rotated_with(InverseFrequency(), x, params), x, params)


def test_there_is_no_other_way_to_an_angle_that_is_no_number() -> None:
    x, positions = normal(1, 3, 1, 4), np.arange(3, dtype=np.int32)
    bad = [(0.0, 1.0), (-1.0, 1.0), (np.nan, 1.0), (np.inf, 1.0), (1e4, 0.0), (1e4, np.inf)]
    for base, scale in bad:
        assert list(ways_to_turn(x, positions, RopeParams(4, base, scale, None))) == []
    zero = RopeParams(4, 1e4, 1.0, np.zeros(2, np.float32))
    assert list(ways_to_turn(x, positions, zero)) == []


@pytest.mark.parametrize("width", [64, 1000, 4096])
def test_a_norm_may_add_its_squares_up_in_float32(width: int) -> None:
    x, weight = normal(2, 20, width), normal(3, width)
    x[:10] = np.linspace(0.5, 4, 10)[:, None]  # rows of one value, where every rounding adds up
    shown, ops = OneByOne().rms_norm(x, weight, 1e-5), judge()
    truth = carried(ops.rms_norm(x, weight, 1e-5))
    assert conforms(shown, truth, truth.bound, truth.others())
    for wrong in (shown * np.float32(1 + 2e-6), OneByOne().rms_norm(x, weight, 3e-6)):
        truth = carried(ops.rms_norm(x, weight, 1e-5))
        assert not conforms(wrong, truth, truth.bound, truth.others())


@pytest.mark.parametrize("cells", [300, 4096, 30000])
def test_a_softmax_may_add_its_powers_up_in_float32(cells: int) -> None:
    x, ops = normal(2, 2, 6, cells), judge()
    x[:, 3:] /= 100  # next to even: every addition rounds the same way
    shown = OneByOne().soft_max(x, 0.125, None)
    truth = carried(ops.soft_max(x, 0.125, None))
    assert conforms(shown, truth, truth.bound, truth.others())
    far, one = shown * np.float32(1 + 2 * cells * U), shown.copy()
    one[1, 2, 7] *= np.float32(1 + 1e-5)
    scaled = OneByOne().soft_max(x, 0.125 * (1 + 1e-4), None)
    for wrong in (far, one, scaled):
        assert not conforms(wrong, truth, truth.bound, truth.others())


@pytest.mark.parametrize("way", [ByTanh, ByExp2])
@pytest.mark.parametrize("size", [1, 8, 40])
def test_a_gate_may_be_computed_by_another_formula(way: type[Mirror], size: int) -> None:
    gate, up = normal(4, 100, 64) * np.float32(size), normal(5, 100, 64)
    shown, ops = way().swiglu(gate, up), judge()
    truth = carried(ops.swiglu(gate, up))
    assert conforms(shown, truth, truth.bound, truth.others())
    for wrong in (shown * np.float32(1 + 1e-5), way().swiglu(gate * np.float32(1 + 1e-5), up)):
        assert not conforms(wrong, truth, truth.bound, truth.others())


# --- wrong, beside honest ones ----------------------------------------------------------------


@pytest.mark.parametrize("way", [Mirror, *WAYS])
@ropes
def test_wrong_angles_are_found_in_every_design(way: type[Mirror], params: RopeParams) -> None:
    x, ops = normal(1, len(POSITIONS), 4, params.n_rot), way()
    honest = rotated_with(ops, x, params)
    base = RopeParams(params.n_rot, params.base * (1 + 1e-4), params.scale, params.factors)
    scale = RopeParams(params.n_rot, params.base, params.scale * (1 + 1e-5), params.factors)
    later = POSITIONS + (POSITIONS == 299).astype(np.int32)
    nudged = honest.copy()
    nudged[LAST, 2, 1] += np.float32(1e-6) * np.abs(x[LAST, 2]).max()
    for wrong in (
        rotated_with(ops, x, base),
        rotated_with(ops, x, scale),
        rotated_with(ops, x, params, later),
        honest * np.float32(1 + 1e-6),
        nudged,
    ):
        assert not turns_well(wrong, x, params)


class BaseOff(InverseFrequency):
    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        base = params.base * (1 + 1e-4)
        return super().rotations(
            positions, RopeParams(params.n_rot, base, params.scale, params.factors)
        )


class PositionOff(WideAngles):
    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        return super().rotations(positions + (positions == 299).astype(np.int32), params)


class WeightOff(Mirror):
    def normalise(self, weights: F32) -> F32:
        out = super().normalise(weights)
        out[:, 1] *= np.float32(1 + 1e-5)
        return out


class ExpertOff(Mirror):
    def sum_experts(self, x: F32) -> F32:
        return super().sum_experts(x * np.float32([1, 1 + 1e-5, 1][: x.shape[1]])[:, None])


class SumOff(Mirror):
    def sum_experts(self, x: F32) -> F32:
        return super().sum_experts(x[:, :-1])


class WrongExpert(Mirror):
    def top_k(self, probs: F32, n: int) -> I32:
        ids = super().top_k(probs, n + 1)
        return np.delete(ids, n - 1, axis=-1)


class SameExpertTwice(Mirror):
    def top_k(self, probs: F32, n: int) -> I32:
        ids = super().top_k(probs, n).copy()
        ids[:, -1] = ids[:, 0]
        return ids


class WeightsStay(ById):
    """The ids are sorted, what belongs to them is not."""

    def pick(self, probs: F32, ids: I32) -> F32:
        return super().pick(probs, super().top_k(probs, ids.shape[-1])[:, ::-1])


@pytest.mark.parametrize(
    ("ops", "sites"),
    [
        (BaseOff, {"Qcur_rope", "Kcur_rope"}),
        (PositionOff, {"Qcur_rope", "Kcur_rope"}),
        (WeightOff, {"ffn_moe_weights_norm"}),
        (ExpertOff, {"ffn_moe_out"}),
        (SumOff, {"ffn_moe_out"}),
        (WrongExpert, {"ffn_moe_topk"}),
        (SameExpertTwice, {"ffn_moe_topk"}),
        (WeightsStay, {"ffn_moe_weights"}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_wrong_engine_near_an_honest_one_is_found_at_its_op(
    ops: type[Mirror], sites: set[str], folder: Path
) -> None:
    found = guilty(builtin("moe-q8_0", folder), with_ops(ops))
    assert names(found) == sites
    assert {finding.at_fault for finding in found} == {"subject"}


def test_experts_in_another_order_than_their_ids_are_found(folder: Path) -> None:
    class Mixed(ExpertsById):
        ops = WeightsStay

    assert names(guilty(builtin("moe-q8_0", folder), Mixed)) == {"ffn_moe_weights"}


# --- which experts --------------------------------------------------------------------------

PROBS = np.array([[0.4, 0.1, 0.4, 0.1]], np.float32)
NAN = np.array([[np.nan, 0.1, np.nan, 0.1]], np.float32)


@pytest.mark.parametrize(
    ("shown", "good"),
    [
        ([0, 2, 1], True),
        ([2, 0, 3], True),
        ([3, 2, 0], True),
        ([0, 1, 3], False),
        ([0, 0, 1], False),
        ([0, 2, 4], False),
        ([0, 2, -1], False),
        ([0, 2, 1.5], False),
        ([0, 2, np.nan], False),
    ],
)
@pytest.mark.parametrize("probs", [PROBS, NAN], ids=["numbers", "NaN"])
def test_a_choice_is_right_if_its_probabilities_are_the_largest(
    probs: F32, shown: list[float], good: bool
) -> None:
    truth = np.array([[0, 2, 1]], np.int32)
    best: NDArray[Any] = np.array([shown])
    if np.isnan(probs).any():
        truth = truth[:, [2, 0, 1]]  # NaN counts as a value like others
    assert np.array_equal(chosen(probs, truth, best), best if good else truth)


def test_experts_of_one_side_alone_take_the_places_that_are_left() -> None:
    oracle = np.array([[5, 1, 3], [5, 1, 3]])
    assert order_of(oracle, oracle) is None
    order = order_of(oracle, np.array([[1, 3, 5], [1, 3, 4]]))
    assert order is not None
    assert order.tolist() == [[2, 0, 1], [2, 0, 1]]
