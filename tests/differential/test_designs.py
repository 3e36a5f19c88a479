"""Honest engines of other designs agree, and wrong engines that are close to them do not.

The prompt begins at position 290, where the angles of other designs differ by several bounds.
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
from lockstep.engine.ops.reference import I32, ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import import_members
from lockstep.harness.adapters import adapter_class
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.graph.aliases import places_by_site
from lockstep.harness.graph.wiring import wires_of
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.honest.experts import Backwards
from lockstep.harness.mutants.cache import CacheKeepsLast
from lockstep.harness.records import EXACT, PRESETS, Site
from lockstep.harness.synth.builtin import BUILTIN
from tests.differential.conftest import OpenPlan
from tests.differential.graphs import Recorded
from tests.models import builtin
from tests.recorded import variant_of

import_members("lockstep.harness.honest")
DESIGNS = sorted(name for name, cls in Adapter.family.items() if issubclass(cls, HonestEngine))
START = 290
TOKENS = [(7 * i * i + 11) % 128 for i in range(13)]  # the smallest models have no more tokens
FAR = (Batch.of(TOKENS[:12], start=START), Batch.of(TOKENS[12:], start=START + 12))
LAYERS = ("l_out", "result_output")
TRIED = {  # all designs for built-in llamas; for others, designs of ops that those lack
    # bf16 has rope_freqs; q4_0 has a factor
    **dict.fromkeys(("f32", "bf16", "q4_0"), "(?!experts)"),
    **dict.fromkeys(("moe", "moe-q8_0"), ""),
    "qwen3": "float64|rope|silu|sums",
    "gemma3": "float64|rope-power|sums",
    "phi3": "float64|rope-inverse|silu-tanh",
    "qwen3moe": "experts|float64|sums",
    # its angles are those of YaRN, which one honest engine supports
    "gpt-oss": "experts|float64|sums",
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
    def of(arch: str, preset: str = "exact") -> Recorded:
        path = folder / f"{arch}.gguf"
        if arch in BUILTIN:
            path = builtin(arch, folder)
        elif not path.exists():
            variant_of(arch, path, quant="F32")
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
def test_no_honest_design_is_accused_if_only_layers_are_shown(design: str, recorded: Any) -> None:
    assert recorded("qwen3").accused(adapter_class(f"honest:{design}"), LAYERS) == []


class OneExpertOff(Backwards):
    def sum_experts(self, x: F32) -> F32:
        factors = np.ones(x.shape[1], np.float32)
        factors[0] += np.float32(1e-5)
        return super().sum_experts(x * factors[:, None])


class WeightOff(Mirror):
    def normalise(self, weights: F32) -> F32:
        out = super().normalise(weights)
        out[:, 1] *= np.float32(1 + 1e-5)
        return out


class ExpertOff(Mirror):
    def sum_experts(self, x: F32) -> F32:
        return super().sum_experts(x * np.float32([1, 1 + 1e-5, 1][: x.shape[1]])[:, None])


class SameExpertTwice(Mirror):
    def top_k(self, probs: F32, n: int) -> I32:
        ids = super().top_k(probs, n).copy()
        ids[:, -1] = ids[:, 0]
        return ids


@pytest.mark.parametrize(
    ("arch", "ops", "sites"),
    [
        ("qwen3moe", OneExpertOff, {"ffn_moe_out"}),
        ("moe-q8_0", WeightOff, {"ffn_moe_weights_norm"}),
        ("moe-q8_0", ExpertOff, {"ffn_moe_out"}),
        ("moe-q8_0", SameExpertTwice, {"ffn_moe_topk"}),
    ],
)
def test_wrong_engine_near_an_honest_engine_is_located(
    arch: str, ops: type[Mirror], sites: set[str], recorded: Any
) -> None:
    assert {f.site.name for f in recorded(arch).accused(with_ops(ops))} == sites


# --- experts of equal weight, and caches --------------------------------------------------------


def with_equal_experts(model: Path, copy: Path) -> Path:
    """Return a copy whose router cannot distinguish the first two experts from each other, nor the
    last two."""
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
def test_tie_between_experts_may_be_resolved_either_way(model: str, tmp_path: Path) -> None:
    path = with_equal_experts(builtin(model, tmp_path), tmp_path / "equal.gguf")
    last = adapter_class("honest:experts-last-of-ties")
    found = Recorded.of(path, EXACT, FAR)
    site = Site(step=0, layer=0, name="ffn_moe_topk")
    assert not np.array_equal(found.shown_by(Reference)[site], found.shown_by(last)[site])
    assert found.accused(last) == []


class WideOnCache(Mirror):
    """An engine that keeps queries and softmax weights in float32; llama.cpp converts them to the
    cache's type."""

    def kq(self, q: F32, k: Any) -> F32:
        return ReferenceOps().kq(q, k)

    def kqv(self, p: F32, v: Any) -> F32:
        return ReferenceOps().kqv(p, v)


class ScaledOnCache(WideOnCache):
    def kq(self, q: F32, k: Any) -> F32:
        return super().kq(q, k) * np.float32(1 + 1e-5)


def test_factor_of_an_f16_cache_may_stay_in_float32(tmp_path: Path) -> None:
    settings = replace(EXACT, type_k="F16", type_v="F16")
    found = Recorded.of(builtin("f32", tmp_path), settings, FAR)
    assert found.accused(with_ops(WideOnCache)) == []
    assert {f.site.name for f in found.accused(with_ops(ScaledOnCache))} == {"kq"}


@pytest.mark.parametrize("design", [d for d in DESIGNS if d != "honest:experts-last-of-ties"])
def test_design_differs_from_the_reference(design: str, recorded: Any) -> None:
    cls = adapter_class(design)
    assert issubclass(cls, HonestEngine)
    along = recorded(cls.shows_on)
    ours, theirs = along.shown_by(Reference), along.shown_by(cls)
    assert any(not np.array_equal(ours[site], theirs[site]) for site in ours)


# --- caches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_used_cells_of_a_shown_cache_are_compared(preset: str, recorded: Any) -> None:
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


def test_graph_with_windows_has_no_common_cache_names(recorded: Any) -> None:
    program = recorded("gemma3").program
    names = {site.name for site in places_by_site(program, wires_of(program))}
    assert not names & {"k_cache", "v_cache"}
