"""Scans with large steps, which neither seeded models nor their slices have."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox import whole
from lockstep.harness.blackbox.whole import STEPS
from lockstep.harness.mutants.parts.mistakes import Op
from lockstep.harness.synth.small import write_recurrent, write_window
from tests.black_boxes import bisected, faults
from tests.harness.blackbox.test_blackbox_in_check import plan_of, verdicts


class StepsEnd(Reference, name="test: steps end at 20"):
    """An engine that limits time steps to 20 in these layers. For an x above 20, the step should be
    x itself."""

    layers: tuple[int, ...] = (0, 1)

    def make_model(self) -> Model:
        model = super().make_model()
        put(model.graph, "scan", self.scan)
        return model

    def scan(self, right: Op, layer: int, x: F32, dt: F32, *rest: F32) -> F32:
        short = np.minimum(dt, np.float32(20)) if layer in self.layers else dt
        return right(layer, x, short, *rest)


class StepsEndInOne(StepsEnd, name="test: steps end at 20, in the layer of number 1"):
    layers = (1,)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    write_recurrent(path)
    return path


@pytest.mark.parametrize("wrong", [StepsEnd, StepsEndInOne])
def test_wrong_branch_of_softplus_shows_on_a_model_with_large_steps(
    wrong: type[StepsEnd], model: Path
) -> None:
    found = {v.summary.partition(":")[0]: v.status for v in verdicts(plan_of(model))}
    assert found[STEPS] == "agreed"
    (only,) = (v for v in verdicts(plan_of(model, engine=wrong.name)) if v.status == "diverged")
    assert only.summary.startswith(STEPS)


@pytest.mark.parametrize("shows", [("l_out", "result_output"), None])
def test_engine_with_tensors_is_tested_on_large_steps_too(
    model: Path, shows: tuple[str, ...] | None
) -> None:
    """The engine's usual runs of the model itself have no such steps."""
    wrong = plan_of(model, engine=StepsEnd.name)
    found = list(verdicts(wrong, ("logits", "trace"), shows=shows))
    assert [v.summary.partition(":")[0] for v in found if v.status == "diverged"] == [STEPS]
    # an engine that shows all tensors is asked nothing else
    assert len(found) == 1 or shows is not None


def test_first_layers_slice_has_large_steps_if_the_model_has_no_twin(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "LARGEST_TWIN", 1)
    words = "the slice in F32, layer 0, large time steps"
    for engine, status in ((StepsEnd.name, "diverged"), ("reference", "agreed")):
        found = {
            v.summary.partition(":")[0]: v.status for v in verdicts(plan_of(model, engine=engine))
        }
        assert found[words] == status


@pytest.mark.parametrize(("wrong", "layers"), [(StepsEnd, {0, 1}), (StepsEndInOne, {1})])
def test_layers_with_the_wrong_branch_are_named(
    wrong: type[StepsEnd], layers: set[int], model: Path, tmp_path: Path
) -> None:
    found = bisected(model, tmp_path / "made", engine=wrong.name)
    assert faults(found) == {layer: ["softplus of the time step"] for layer in layers}


def test_model_without_time_steps_is_not_tested_with_large_steps(tmp_path: Path) -> None:
    write_window(tmp_path / "m.gguf")
    assert not [v for v in verdicts(plan_of(tmp_path / "m.gguf")) if STEPS in v.summary]
