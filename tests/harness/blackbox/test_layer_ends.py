"""Engines that show layer outputs but no tensors within layers, on quantised models.

Honest runs of such a layer differ by a percent, or by more if they choose different experts. The
F32 twin shows faults that this difference hides.
"""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import OF_TWIN, Bisection
from lockstep.harness.blackbox import whole
from lockstep.harness.blackbox.offers import shows_ends_alone
from lockstep.harness.blackbox.whole import TWIN
from lockstep.harness.check.check import Plan
from lockstep.harness.cli.bisection import bisection_lines
from lockstep.harness.mutants.parts.mistakes import as_weight, change_weights
from lockstep.harness.records import EngineInfo, Evaluation, Request
from lockstep.harness.runs.run import bisect_one
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.models import open_for_variants as llama_cpp_opened
from lockstep.harness.synth.any_arch import variant_named
from tests.black_boxes import with_made_models
from tests.harness.check.test_check import plan_for
from tests.quiet_engines import ops_with, showing

ENDS = ("embd", "l_out")


class Ends(Reference, name="layer ends: honest"):
    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=ENDS)

    def evaluate(self, request: Request) -> Evaluation:
        return showing(super().evaluate(request), ENDS)


class TwoPercentMore(Ends, name="layer ends: what experts come to is two percent too large"):
    ops = ops_with(sum_experts=lambda ops, x: Mirror.sum_experts(ops, x) * np.float32(1.02))


class HalfAsMuchMoreOfQ8(Ends, name="layer ends: Q8_0 of one matrix is decoded too large"):
    """An engine that is wrong only for Q8_0. The twin has no Q8_0, so the engine is right there."""

    def make_model(self) -> Model:
        def decoded(get: Any, name: str) -> Any:
            weight = get(name)
            if name != "blk.1.attn_output.weight" or weight.format.__name__ == "F32":
                return weight
            return as_weight(weight, weight.values().reshape(weight.shape) * np.float32(1.5))

        model = super().make_model()
        change_weights(model, decoded)
        return model


class BothOfThem(HalfAsMuchMoreOfQ8, name="layer ends: wrong in its graph and in Q8_0"):
    ops = TwoPercentMore.ops


class SecondLayerAlone(Ends, name="layer ends: shows those of its second layer alone"):
    """An engine that declares all layer outputs, but shows only the output of the second layer."""

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        if found.trace is None:
            return found
        shown = tuple(each for each in found.trace.records if each.site.layer == 1)
        return replace(found, trace=replace(found.trace, records=shown))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {quant: folder / f"{quant}.gguf" for quant in ("F32", "Q8_0")}
    with llama_cpp_opened() as session:
        for quant, path in made.items():
            make_variant(variant_named("qwen3moe"), path, quant=quant, session=session)
    return made


def plan_of(model: Path, engine: str, *suites: str) -> Plan:
    more = {"engine": engine, "oracle": "llama.cpp", "n_tokens": 16, "n_steps": 2}
    return plan_for(model, suites=suites, **more)


def bisected(model: Path, engine: str) -> tuple[Bisection, str]:
    """Return the bisection, and the lines that the command prints."""
    plan, said = plan_of(model, engine), []
    bisect_one(plan, said.append)
    found = said[-1]
    assert isinstance(found, Bisection)
    return found, "\n".join(bisection_lines(plan, found))


def test_each_wrong_layer_is_named_and_confirmed_on_the_twin(
    models: dict[str, Path],
) -> None:
    found, text = bisected(models["Q8_0"], TwoPercentMore.name)
    assert found.asked == OF_TWIN
    assert {(each.layer, each.site.name) for each in found.culprits} == {(0, "l_out"), (1, "l_out")}
    assert found.patched is not None
    assert found.patched.confirms
    assert "of the F32 twin" in text
    assert "the usual run shows no wrong op" not in text


def test_twin_does_not_accuse_an_honest_engine(models: dict[str, Path]) -> None:
    found, _ = bisected(models["Q8_0"], Ends.name)
    assert (found.exit_code, found.culprits, found.asked) == (0, (), "")


def test_fault_in_a_weight_type_is_reported_besides_the_twins_faults(
    models: dict[str, Path],
) -> None:
    """The twin has no weights of this type, so a proof on the twin does not cover the fault."""
    found, text = bisected(models["Q8_0"], BothOfThem.name)
    assert found.asked == OF_TWIN
    ((left, there),) = found.as_stored
    assert (left.layer, left.site.name) == (1, "l_out")
    assert left.err_local > 10 * there
    assert "in the stored model l_out-1 is off by" in text


@pytest.mark.parametrize("engine", [TwoPercentMore, HalfAsMuchMoreOfQ8])
def test_single_fault_is_reported_once(engine: type[Ends], models: dict[str, Path]) -> None:
    found, text = bisected(models["Q8_0"], engine.name)
    assert found.as_stored == ()
    assert "in the stored model" not in text
    assert (found.asked == OF_TWIN) == (engine is TwoPercentMore)


def test_bisect_reports_the_usual_run_if_there_is_no_room_for_a_twin(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole, "write_twin", full)
    found, _ = bisected(models["Q8_0"], HalfAsMuchMoreOfQ8.name)
    assert {each.layer for each in found.culprits} == {1}


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_promised_but_hidden_layer_outputs_are_missing(quant: str, models: dict[str, Path]) -> None:
    found, text = bisected(models[quant], SecondLayerAlone.name)
    assert {(each.layer, each.site.name) for each in found.culprits} == {(0, "l_out")}
    assert "l_out-0" in text
    assert "missing" in text
    assert not found.as_stored


def test_pure_f32_model_is_its_own_twin(models: dict[str, Path]) -> None:
    found, _ = bisected(models["F32"], TwoPercentMore.name)
    assert found.asked == ""
    assert {each.layer for each in found.culprits} == {0, 1}


@pytest.mark.parametrize(
    ("engine", "quant", "expected"),
    [
        (TwoPercentMore.name, "Q8_0", "diverged"),
        (Ends.name, "Q8_0", "agreed"),
        (Ends.name, "F32", "agreed"),
    ],
)
def test_check_runs_the_twin_if_tensors_show_only_the_logits(
    engine: str, quant: str, expected: str, models: dict[str, Path]
) -> None:
    first, *_ = with_made_models(plan_of(models[quant], engine, "black-box"))
    assert first.status == expected
    made = "the F32 twin" if quant == "Q8_0" else "the model made with small activations"
    assert first.summary.startswith(f"{made}: ")


@pytest.mark.parametrize("engine", ["reference", "replay"])
def test_engine_with_layer_tensors_is_not_asked_for_layer_outputs(
    engine: str, models: dict[str, Path]
) -> None:
    """The test also covers an engine that offers single ops but shows no tensors."""
    (found,) = with_made_models(plan_of(models["Q8_0"], engine, "black-box"))
    assert (found.status, found.summary) == (
        "not-applicable", f"{engine} shows tensors, which show more",
    )  # fmt: skip


def test_subject_with_a_file_in_f32_is_its_own_twin(models: dict[str, Path]) -> None:
    """An earlier version did not run the twin, so the graph was not compared."""
    plan = replace(plan_of(models["Q8_0"], Ends.name, "black-box"), subject_model=models["F32"])
    first, *_ = with_made_models(plan)
    assert first.status == "diverged"  # the weights differ, because Q8_0 rounds them
    assert first.summary.startswith("the F32 twin: ")
    assert models["F32"].exists()


def test_model_without_logits_is_tested_in_f32_too(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    with llama_cpp_opened() as session:
        make_variant(variant_named("bert"), path, quant="Q8_0", session=session)
    found = with_made_models(plan_of(path, Ends.name, "black-box"))
    assert [v.status for v in found] == ["agreed"] * 3
    assert found[0].summary.startswith(TWIN)


@pytest.mark.parametrize(
    ("shows", "alone"),
    [
        (ENDS, True),
        (("ffn_out", "result_embd_pooled"), True),  # in an encoder, l_out has no name
        (("attn_out", "ffn_out"), True),  # two products in sequence, with the ops in between
        (("l_out", "ffn_swiglu"), False),
        (("l_out", "kqv_out"), False),
        (None, False),
    ],
)
def test_engine_without_single_products_shows_layer_outputs(
    shows: tuple[str, ...] | None, alone: bool
) -> None:
    assert shows_ends_alone(EngineInfo(engine="mine", version="1", shows=shows)) == alone
