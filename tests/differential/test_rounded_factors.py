"""Engines that round the factors of products are right, and an additional fault is found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.ops.reference import RopeParams
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.runs.run import builtin_model
from tests.models import written
from tests.plans import plan_of, verdicts_of

import_members("lockstep.harness.honest")
ROUNDED = {
    "f16": "weights and activations in F16",
    "weights-bf16": "weights in BF16",
    "chances-f16": "attention weights in F16",
    "cache-e4m3": "keys and values in E4M3",
    "attention-int8": "queries and keys in bytes",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("rounded"), seed=6, n_layer=2)


def ops_of(name: str) -> Any:
    cls: Any = Adapter.member(f"honest:{name}")
    return cls.ops


@pytest.mark.parametrize("name", ROUNDED)
def test_trace_names_the_rounded_factors(name: str, model: Path) -> None:
    (verdict,) = verdicts_of(plan_of(model, f"honest:{name}"), "trace")
    assert verdict.status == "agreed"
    assert any(words.startswith(ROUNDED[name]) for words in verdict.detail["designs"])


def test_trace_names_no_rounding_for_a_float32_engine(model: Path) -> None:
    (verdict,) = verdicts_of(plan_of(model), "trace")
    assert verdict.status == "agreed"
    assert "designs" not in verdict.detail


@pytest.mark.parametrize("name", ["f16", "cache-e4m3"])
def test_logits_agree_with_a_run_of_the_design(name: str, model: Path) -> None:
    verdicts = verdicts_of(plan_of(model, f"honest:{name}"), "logits")
    assert exit_code(verdicts) == 0
    assert ROUNDED[name] in {v.detail.get("design") for v in verdicts}


class WrongInHalves(Reference, name="test: in halves, and a rope off by a position"):
    class ops(ops_of("f16")):  # type: ignore[misc]
        def rope(self, x: F32, positions: Any, params: RopeParams) -> F32:
            return np.asarray(super().rope(x, positions + 1, params), np.float32)


class ScaledInHalves(Reference, name="test: in halves, and one product a thousandth too large"):
    class ops(ops_of("f16")):  # type: ignore[misc]
        def linear(self, x: F32, weight: Any) -> F32:
            scale = np.float32(1.001 if weight.name == "blk.1.ffn_up.weight" else 1)
            return np.asarray(super().linear(x, weight) * scale, np.float32)


@pytest.mark.parametrize(
    ("engine", "sites"),
    [
        (WrongInHalves.name, {"Qcur_rope", "Kcur_rope"}),
        (ScaledInHalves.name, {"ffn_up"}),
    ],
)
def test_fault_of_an_engine_in_halves_is_found_at_its_op(
    engine: str, sites: set[str], model: Path
) -> None:
    verdicts = verdicts_of(plan_of(model, engine), "trace")
    assert {v.detail["site"] for v in verdicts if v.status == "diverged"} == sites


class TwentiethMore(Reference, name="test: in halves, and one product a twentieth too large"):
    class ops(ops_of("f16")):  # type: ignore[misc]
        def linear(self, x: F32, weight: Any) -> F32:
            scale = np.float32(1.05 if weight.name == "blk.1.ffn_up.weight" else 1)
            return np.asarray(super().linear(x, weight) * scale, np.float32)


def test_logits_show_a_fault_of_an_engine_in_halves(model: Path) -> None:
    assert exit_code(verdicts_of(plan_of(model, TwentiethMore.name), "logits")) == 1


def test_choices_of_an_engine_in_halves_are_explained_by_its_logits(tmp_path: Path) -> None:
    quantised = builtin_model("q4_0", tmp_path)
    plan = plan_of(quantised, "honest:bf16", n_tokens=32, n_steps=64)
    verdicts = verdicts_of(plan, "decode")
    assert exit_code(verdicts) == 0


class ChoosesOther(Reference, name="test: in halves, and its greedy loop takes the second token"):
    class ops(ops_of("bf16")):  # type: ignore[misc]
        pass

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        ids = super().greedy(prompt, n)
        return [*ids[:-1], ids[-1] ^ 1]


def test_wrong_choice_of_an_engine_in_halves_is_found(tmp_path: Path) -> None:
    quantised = builtin_model("q4_0", tmp_path)
    plan = plan_of(quantised, ChoosesOther.name, n_tokens=32, n_steps=8)
    assert exit_code(verdicts_of(plan, "decode")) == 1
