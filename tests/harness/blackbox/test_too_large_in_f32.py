"""A model that is too large in F32. Groups of layers are tested at their places, one group at a
time, and the report names the untested parts."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.blackbox import whole
from lockstep.harness.blackbox.asking import SliceAnswer
from lockstep.harness.blackbox.bisection import BlackBoxBisection, of_the_whole
from lockstep.harness.blackbox.in_check import BY_NUMBER as NOT_BY_NUMBER
from lockstep.harness.blackbox.places import TOO_LARGE, see_in_place
from lockstep.harness.blackbox.whole import groups_of, in_f32
from lockstep.harness.catalogue.opening import KnownModels
from lockstep.harness.cli.blackbox import lines_of
from lockstep.harness.records import EngineInfo
from lockstep.harness.selftest.black_box.one_layer import BY_NUMBER, OneLayerFault, engine_with
from tests.black_boxes import asker_of, bisected, faults, with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import builtin, written


class LogitsAlone(Reference, name="too large: logits alone"):
    def describe(self) -> EngineInfo:
        return replace(super().describe(), levels=("logits",), shows=(), shows_nodes=False)


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LARGEST_TWIN", 1)


@pytest.mark.parametrize(("layers_that_fit", "groups"), [(0, [1, 1, 1]), (2, [2, 1]), (9, [3])])
def test_layers_in_f32_are_grouped_to_fit_into_a_twin(
    layers_that_fit: int, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(asker_of(written(tmp_path, n_layer=3), tmp_path / "made")) as asker:
        tensors = asker.file.tensors.values()
        layer = sum(4 * t.n_elements for t in tensors if t.name.startswith("blk.0."))
        monkeypatch.setattr(whole, "LARGEST_TWIN", layers_that_fit * layer)
        found = groups_of(asker)
        assert [len(group) for group in found] == groups
        assert [layer for group in found for layer in group] == [0, 1, 2]


@pytest.mark.usefixtures("small_room")
def test_fault_by_layer_number_is_seen_at_its_place_and_named(tmp_path: Path) -> None:
    """Conversions of activations may hide the fault in the stored model."""
    fault = OneLayerFault(way=BY_NUMBER, layer=1, where="Qcur_rope", change="not-turned")
    models = KnownModels(folder=tmp_path)
    asker = asker_of(builtin("q4_0", tmp_path), tmp_path / "made")
    asker = replace(asker, opening=models.opening(partial(LocalSession, engine_with(fault))))
    try:
        seen = {what: answer.status for what, answer in in_f32(asker)}
        assert seen == {"layer 0 at its place": "agreed", "layer 1 at its place": "diverged"}
        quiet = SliceAnswer(status="agreed", summary="")
        found = BlackBoxBisection(rows=(), lenses=(), whole=quiet, left_out=())
        assert faults(of_the_whole(asker, found, 2)) == {1: ["attention: rotation, by its number"]}
    finally:
        asker.close()
        models.close()


@pytest.mark.usefixtures("small_room")
@pytest.mark.parametrize("engine", ["reference", "honest:float64", "honest:activations-bf16"])
def test_honest_engine_agrees_and_untested_parts_are_named(engine: str, tmp_path: Path) -> None:
    path = builtin("q4_0", tmp_path)
    found = bisected(path, tmp_path / "made", engine=engine)
    assert (found.exit_code, found.guilty) == (0, ())
    assert {answer.status for answer in found.in_f32.values()} == {"agreed"}
    said = list(lines_of(asker_of(path, tmp_path / "made").plan, found))
    assert f"not asked: {TOO_LARGE}" in said


@pytest.mark.usefixtures("small_room")
def test_check_reports_that_it_skips_layers_by_number(tmp_path: Path) -> None:
    plan = plan_for(
        builtin("q4_0", tmp_path), engine=LogitsAlone.name, n_tokens=8, suites=("black-box",)
    )
    said = [verdict.summary for verdict in with_made_models(plan)]
    assert f"{TOO_LARGE}; {NOT_BY_NUMBER}" in said


def test_small_model_is_not_reported_as_too_large(tmp_path: Path) -> None:
    with closing(asker_of(written(tmp_path, n_layer=2), tmp_path / "made")) as asker:
        assert see_in_place(asker)[1] != TOO_LARGE
