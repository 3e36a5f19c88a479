"""Honest engines of other designs are in agreement, and wrong ones beside them are not.

The prompt begins at position 290, where angles of another design are several bounds apart.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, ReferenceOps, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import import_members
from lockstep.harness.adapters import adapter_class
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.graph.aliases import places_by_site
from lockstep.harness.graph.wiring import wires_of
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.honest.experts import Backwards, ById
from lockstep.harness.honest.rotations import InverseFrequency, WideAngles
from lockstep.harness.honest.sigmoids import ByTanh
from lockstep.harness.honest.sums import OneByOne
from lockstep.harness.mutants.cache import CacheKeepsLast
from lockstep.harness.records import EXACT, PRESETS, Site
from lockstep.harness.shadow.models import make_variant, opened
from lockstep.harness.synth.any_arch import variant_named
from lockstep.harness.synth.builtin import BUILTIN
from tests.differential.conftest import OpenPlan
from tests.differential.graphs import Recorded
from tests.models import builtin

import_members("lockstep.harness.honest")
DESIGNS = sorted(name for name, cls in Adapter.family.items() if issubclass(cls, HonestEngine))
START = 290
TOKENS = [(7 * i * i + 11) % 128 for i in range(13)]  # the smallest models have no more
FAR = (Batch.of(TOKENS[:12], start=START), Batch.of(TOKENS[12:], start=START + 12))
LAYERS = ("l_out", "result_output")
TRIED = {  # of built-in llamas all designs; of others those of ops that these have not
    **dict.fromkeys(("f32", "bf16", "q4_0"), "(?!experts)"),  # bf16: rope_freqs; q4_0: a factor
    **dict.fromkeys(("moe", "moe-q8_0"), ""),
    "qwen3": "float64|rope|silu|sums",
    "gemma3": "float64|rope-power|sums",
    "phi3": "float64|rope-inverse|silu-tanh",
    "qwen3moe": "experts|float64|sums",
    "gpt-oss": "experts|float64|sums",  # its angles are YaRN's, of which one honest engine knows
}


def with_ops(ops: type[Mirror]) -> Any:
    class Engine(Reference):
        def make_ops(self) -> Mirror:
            return ops(self.settings.n_threads, self.settings.n_ctx, self.settings.generic)

    return Engine


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recorded]:
    folder = tmp_path_factory.mktemp("designs")

    @cache
    def model(arch: str, quant: str, width: int) -> Path:
        path = folder / f"{arch}-{quant}-{width}.gguf"
        variant = variant_named(arch)
        if width:
            variant = replace(variant, sizes=(("n_embd", width), *variant.sizes))
        with opened() as namer:
            make_variant(variant, path, quant=quant, session=namer)
        return path

    @cache
    def of(arch: str, preset: str = "exact", quant: str = "F32", width: int = 0) -> Recorded:
        known = arch in BUILTIN
        path = builtin(arch, folder) if known else model(arch, quant, width)
        return Recorded.of(path, PRESETS[preset], FAR)

    return of


@pytest.mark.parametrize(
    ("arch", "design", "preset"),
    [
        (arch, name, preset)
        for arch, kinds in TRIED.items()
        for name in DESIGNS
        for preset in (PRESETS if arch in (*BUILTIN, "qwen3moe") else ("exact",))
        if re.fullmatch(f"honest:({kinds}).*", name)
    ],
)
def test_no_honest_design_is_accused(arch: str, design: str, preset: str, recorded: Any) -> None:
    assert recorded(arch, preset).accused(adapter_class(design)) == []


@pytest.mark.parametrize("design", ["float64", "rope-power", "silu-tanh", "sums-one-by-one"])
def test_no_honest_design_is_accused_by_its_layers_alone(design: str, recorded: Any) -> None:
    assert recorded("qwen3").accused(adapter_class(f"honest:{design}"), LAYERS) == []


class NormsOneByOne(Mirror):
    rms_norm = OneByOne.rms_norm


class NormsOff(NormsOneByOne):
    """One row is off by a share that a bound of so many additions in any order would hide."""

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        out = super().rms_norm(x, weight, eps)
        out[0] *= np.float32(1 + 4e-6)
        return out


def test_squares_of_wide_rows_may_be_added_up_in_float32(recorded: Any) -> None:
    wide = recorded("qwen3", width=2048)
    assert wide.accused(with_ops(NormsOneByOne)) == []
    found = {f.site.name for f in wide.accused(with_ops(NormsOff))}
    assert {"attn_norm", "ffn_norm", "result_norm"} <= found
    assert all("norm" in name for name in found)


class SlightlyStretched(InverseFrequency):
    """Of angles in any way in float32 it might be one."""

    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        return super().rotations(positions, replace(params, scale=params.scale * (1 + 5e-7)))


class LaterByOne(WideAngles):
    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        return super().rotations(positions + (positions == START + 3).astype(np.int32), params)


class GateOff(ByTanh):
    def swiglu(self, gate: F32, up: F32) -> F32:
        return super().swiglu(gate * np.float32(1 + 1e-5), up)


class OneExpertOff(Backwards):
    def sum_experts(self, x: F32) -> F32:
        factors = np.ones(x.shape[1], np.float32)
        factors[0] += np.float32(1e-5)
        return super().sum_experts(x * factors[:, None])


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


ROPES = {"Qcur_rope", "Kcur_rope"}


@pytest.mark.parametrize(
    ("arch", "ops", "sites"),
    [
        ("qwen3", SlightlyStretched, ROPES),
        ("qwen3", LaterByOne, ROPES),
        ("phi3", LaterByOne, ROPES),
        ("qwen3", GateOff, {"ffn_swiglu"}),
        ("qwen3moe", GateOff, {"ffn_moe_swiglu"}),
        ("qwen3moe", OneExpertOff, {"ffn_moe_out"}),
        ("moe-q8_0", BaseOff, ROPES),
        ("moe-q8_0", PositionOff, ROPES),
        ("moe-q8_0", WeightOff, {"ffn_moe_weights_norm"}),
        ("moe-q8_0", ExpertOff, {"ffn_moe_out"}),
        ("moe-q8_0", SumOff, {"ffn_moe_out"}),
        ("moe-q8_0", WrongExpert, {"ffn_moe_topk"}),
        ("moe-q8_0", SameExpertTwice, {"ffn_moe_topk"}),
        ("moe-q8_0", WeightsStay, {"ffn_moe_weights"}),
    ],
)
def test_a_wrong_engine_near_an_honest_one_is_found_at_its_op(
    arch: str, ops: type[Mirror], sites: set[str], recorded: Any
) -> None:
    assert {f.site.name for f in recorded(arch).accused(with_ops(ops))} == sites


# --- experts of equal weight, and caches --------------------------------------------------------


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
def test_a_tie_between_experts_may_end_either_way(model: str, tmp_path: Path) -> None:
    path = with_equal_experts(builtin(model, tmp_path), tmp_path / "equal.gguf")
    last = adapter_class("honest:experts-last-of-ties")
    found = Recorded.of(path, EXACT, FAR)
    site = Site(step=0, layer=0, name="ffn_moe_topk")
    assert not np.array_equal(found.shown_by(Reference)[site], found.shown_by(last)[site])
    assert found.accused(last) == []


class WideOnCache(Mirror):
    """Leaves queries and weights in float32, which llama.cpp converts to the cache's type."""

    def kq(self, q: F32, k: Any) -> F32:
        return ReferenceOps().kq(q, k)

    def kqv(self, p: F32, v: Any) -> F32:
        return ReferenceOps().kqv(p, v)


class ScaledOnCache(WideOnCache):
    def kq(self, q: F32, k: Any) -> F32:
        return super().kq(q, k) * np.float32(1 + 1e-5)


def test_what_meets_an_f16_cache_may_stay_in_float32(tmp_path: Path) -> None:
    settings = replace(EXACT, type_k="F16", type_v="F16")
    found = Recorded.of(builtin("f32", tmp_path), settings, FAR)
    assert found.accused(with_ops(WideOnCache)) == []
    assert {f.site.name for f in found.accused(with_ops(ScaledOnCache))} == {"kq"}


@pytest.mark.parametrize("design", [d for d in DESIGNS if d != "honest:experts-last-of-ties"])
def test_a_design_computes_other_numbers_than_the_reference(design: str, recorded: Any) -> None:
    cls = adapter_class(design)
    assert issubclass(cls, HonestEngine)
    along = recorded(cls.shows_on)
    ours, theirs = along.shown_by(Reference), along.shown_by(cls)
    assert any(not np.array_equal(ours[site], theirs[site]) for site in ours)


# --- caches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_a_cache_is_shown_by_its_cells_in_use(preset: str, recorded: Any) -> None:
    assert recorded("qwen3", preset).accused(Reference) == []
    assert recorded("qwen3", preset).accused(adapter_class("honest:float64")) == []
    found = recorded("qwen3", preset).accused(CacheKeepsLast)
    assert {(f.site.name, f.op) for f in found} == {
        ("k_cache", "SET_ROWS"),
        ("v_cache", "SET_ROWS"),
    }


def test_a_wrong_cache_is_confirmed_by_patching(
    recorded: Any, open_for: OpenPlan, plan_for: Any
) -> None:
    plan = plan_for(recorded("qwen3").path, engine=CacheKeepsLast.name, n_tokens=9, n_steps=3)
    with open_for(plan) as asked:
        found = bisect(asked.context)
    assert found.first is not None
    assert str(found.first.site) == "k_cache-0"
    assert found.patched is not None
    assert found.patched.confirms


def test_of_layers_with_windows_no_cell_is_one_of_llama_cpps(recorded: Any) -> None:
    program = recorded("gemma3").program
    names = {site.name for site in places_by_site(program, wires_of(program))}
    assert not names & {"k_cache", "v_cache"}
