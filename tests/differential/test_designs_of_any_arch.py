"""Honest engines of other designs along llama.cpp's graph, of architectures other than llama.

The prompt begins at position 290, where angles of another design are several bounds apart.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from engine.gguf_file import GgufFile
from engine.ops.build import Build
from engine.ops.mirror import Mirror
from engine.ops.near import F64
from engine.ops.reference import I32, RopeParams
from engine.quants.base import F32
from harness.adapters import adapter_class, reference
from harness.bisect.bisection import bisect
from harness.check import lanes_of
from harness.graph.aliases import places_by_site, renamed
from harness.graph.program import Program
from harness.graph.record import record
from harness.graph.segments import SegmentJudge
from harness.graph.wiring import wires_of
from harness.honest.experts_backwards import Backwards
from harness.honest.rope_float64 import WideAngles
from harness.honest.rope_inverse_frequency import InverseFrequency
from harness.honest.silu_tanh import ByTanh
from harness.honest.sums_one_by_one import OneByOne
from harness.judge import SiteFinding
from harness.mutants.cache_keeps_last import CacheKeepsLast
from harness.records import PRESETS, Answered, Request, Settings
from harness.runner import Runner
from harness.shadow.models import make_variant, opened
from harness.synth.any_arch import variant_named
from tests.differential.conftest import OpenPlan
from tests.test_honest_designs import DESIGNS, START, TOKENS, with_ops

LAYERS = ("l_out", "result_output")
TRIED = {  # of each architecture the designs of ops that it has beside another one's
    "qwen3": "float64|rope|silu|sums",
    "gemma3": "float64|rope-power|sums",
    "phi3": "float64|rope-inverse|silu-tanh",
    "qwen3moe": "experts|float64|sums",
    "gpt-oss": "experts|float64|sums",  # its angles are YaRN's, of which one honest engine knows
}
SMALL = [token % 128 for token in TOKENS]  # the models that are made have no more
FAR = (Batch.of(SMALL[:12], start=START), Batch.of(SMALL[12:], start=START + 12))


@dataclass(frozen=True, eq=False)
class Recorded:
    path: Path
    settings: Settings
    program: Program
    build: Build

    def accused(self, make: Any, only: tuple[str, ...] = ()) -> list[SiteFinding]:
        """Of what an engine shows of its own run. only: of these names."""
        engine = make(self.path, self.settings)
        values = engine.evaluate(Request(batches=FAR, capture=True)).trace.values()
        engine.close()
        wires = wires_of(self.program)
        places = places_by_site(self.program, wires)
        chosen = {s: v for s, v in values.items() if not only or s.name in only}
        with GgufFile.open(self.path) as file:
            judge = SegmentJudge(
                program=self.program,
                wires=renamed(wires, places),
                file=file,
                build=self.build,
                shown={places[site]: v for site, v in chosen.items() if site in places},
            )
            found = list(judge.findings())
        assert found
        return [finding for finding in found if finding.mismatch is not None]


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
        path, settings = model(arch, quant, width), PRESETS[preset]
        with Runner().open("llama.cpp", path, settings) as session:
            info = session.ask("describe")
            assert isinstance(info, Answered)
            program = record(session, FAR)
            assert isinstance(program, Program)
        build = Build(
            lanes=lanes_of(info.value.build),
            n_threads=settings.n_threads,
            generic=info.value.generic,
        )
        return Recorded(path, settings, program, build)

    return of


@pytest.mark.parametrize(
    ("arch", "design", "preset"),
    [
        (arch, name, preset)
        for arch, kinds in TRIED.items()
        for name in DESIGNS
        for preset in (PRESETS if arch == "qwen3moe" else ("exact",))
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
    ],
)
def test_a_wrong_engine_near_an_honest_one_is_found_at_its_op(
    arch: str, ops: type[Mirror], sites: set[str], recorded: Any
) -> None:
    assert {f.site.name for f in recorded(arch).accused(with_ops(ops))} == sites


# --- caches, which our engine shows along llama.cpp's graph if it is told to ----------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_a_cache_is_shown_by_its_cells_in_use(
    preset: str, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "NO_NODES", ())
    assert recorded("qwen3", preset).accused(reference.Reference) == []
    assert recorded("qwen3", preset).accused(adapter_class("honest:float64")) == []
    found = recorded("qwen3", preset).accused(CacheKeepsLast)
    assert {(f.site.name, f.op) for f in found} == {
        ("k_cache", "SET_ROWS"),
        ("v_cache", "SET_ROWS"),
    }


def test_a_wrong_cache_is_confirmed_by_patching(
    recorded: Any, open_for: OpenPlan, plan_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "NO_NODES", ())
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
