"""A fault of one tensor that is visible only at the tensor's place. Slices, lenses and the F32 twin
do not show such a fault."""

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox import in_check
from lockstep.harness.blackbox.in_check import check_black_box
from lockstep.harness.blackbox.in_place import LOOKS, MATRICES, layout_of, recipe_of
from lockstep.harness.blackbox.places import SeenInPlace, is_another_eps, see_in_place
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.check.check import open_plan
from lockstep.harness.records import Verdict
from tests.black_boxes import asker_of, bisected, faults, wrong_tensors
from tests.harness.check.test_check import plan_for
from tests.models import written
from tests.quiet_engines import Quiet

OFF = np.float32(1.001)


class OneTensorOff(Mirror):
    """An engine that reads the values of one stored tensor a thousandth too large. It reads the
    tensor right in F32, or under another name."""

    tensor = ""

    def is_wrong(self, weight: Weight) -> bool:
        return weight.name == self.tensor and weight.format.name != "F32"

    def linear(self, x: F32, weight: Weight) -> F32:
        found = super().linear(x, weight)
        return (found * OFF).astype(np.float32) if self.is_wrong(weight) else found

    def get_rows(self, weight: Weight, ids: NDArray[np.int32]) -> F32:
        found = super().get_rows(weight, ids)
        return found * OFF if self.is_wrong(weight) else found


class WrongInOnePlace(Reference, name="test:wrong-in-one-place"):
    ops = OneTensorOff


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written(tmp_path, quant="Q4_1", n_layer=3)


def looked_at(path: Path, folder: Path, engine: str) -> list[SeenInPlace]:
    with closing(asker_of(path, folder, engine=engine)) as asker:
        found, why = see_in_place(asker)
        assert not why
        return found


@pytest.mark.parametrize(
    "tensor", [*(f"blk.1.{matrix}.weight" for matrix in MATRICES), "token_embd.weight"]
)
def test_tensor_off_by_a_thousandth_in_its_place_is_named(
    tensor: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneTensorOff, "tensor", tensor)
    found = looked_at(model, tmp_path / "made", "test:wrong-in-one-place")
    assert [each.tensors for each in found if each.answer.differs] == [(tensor,)]
    assert {each.answer.status for each in found} == {"agreed", "diverged"}


HONEST = (
    "fast",
    "honest:float64",
    "honest:activations-bf16",
    "honest:activations-int8-rows",
    "honest:silu-tanh",
    "honest:sums-one-by-one",
)


@pytest.mark.parametrize("engine", HONEST)
@pytest.mark.parametrize("quant", ["Q4_1", "F16"])
def test_honest_engine_is_not_accused(engine: str, quant: str, tmp_path: Path) -> None:
    path = written(tmp_path, quant=quant, n_layer=3)
    found = looked_at(path, tmp_path / "made", engine)
    assert [each.answer.status for each in found] == ["agreed"] * len(LOOKS)


class UsualEps(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 1e-5)


class IgnoresEps(Reference, name="test:ignores-eps-of-all"):
    ops = UsualEps


def test_engine_with_the_usual_eps_is_accused_of_no_tensors(model: Path, tmp_path: Path) -> None:
    with closing(asker_of(model, tmp_path / "made", engine="test:ignores-eps-of-all")) as asker:
        found, why = see_in_place(asker)
    assert (found, "does not take attention.layer_norm_rms_epsilon" in why) == ([], True)


def test_other_eps_is_found_by_tokens_with_nonzero_embeddings() -> None:
    right = np.array([[1, -2, 3], [0, 0, 0], [4, 1, -1]], np.float32)
    each = np.array([[100], [7], [30]], np.float32)
    assert is_another_eps(right, right * each)
    assert not is_another_eps(right, right)
    assert not is_another_eps(right, right * each + np.float32(1))
    assert not is_another_eps(np.zeros_like(right), np.zeros_like(right))


def test_wrong_stored_embeddings_are_not_mistaken_for_another_eps(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneTensorOff, "tensor", "token_embd.weight")
    monkeypatch.setattr(sys.modules[__name__], "OFF", np.float32(1.9))
    found = looked_at(model, tmp_path / "made", "test:wrong-in-one-place")
    assert [each.tensors for each in found if each.answer.differs] == [("token_embd.weight",)]


def test_bisection_names_a_tensor_that_slices_and_lenses_miss(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneTensorOff, "tensor", "blk.2.ffn_down.weight")
    found = bisected(model, tmp_path / "made", engine="test:wrong-in-one-place")
    assert (faults(found), wrong_tensors(found), found.whole.status) == ({}, set(), "agreed")
    assert [each.tensors for each in found.places if each.tensors] == [("blk.2.ffn_down.weight",)]
    assert found.exit_code == 1


def test_check_names_the_tensor_that_is_wrong_only_in_its_place(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneTensorOff, "tensor", "blk.0.attn_q.weight")
    monkeypatch.setattr(in_check, "LENSES", 1)
    wrong = [v for v in verdicts(model, "test:wrong-in-one-place") if v.status == "diverged"]
    assert [v.summary.partition(":")[0] for v in wrong] == ["attn_q and ffn_gate in their places"]
    assert "(blk.0.attn_q.weight)" in wrong[0].summary


def verdicts(path: Path, engine: str) -> Iterator[Verdict]:
    """Yield the verdicts on the engine, restricted to logits."""
    plan = plan_for(path, n_tokens=8, engine=engine)
    with closing(open_plan(plan, lambda _: None)) as opened:
        info = replace(opened.context.subject_info, levels=("logits",), shows_nodes=False)
        yield from check_black_box(plan, replace(opened.context, subject_info=info))


def test_matrices_in_place_keep_the_files_bytes_and_names(model: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "made.gguf", set()
    with GgufFile.open(model) as file:
        layout = layout_of(file)
        for look in LOOKS:
            rewrite(file, recipe_of(file, layout, look), out)
            with GgufFile.open(out) as made:
                assert {*made.tensors} == {*file.tensors, "output.weight"}
                for layer in range(layout.layers):
                    for matrix in filter(None, (look.attention, look.ffn)):
                        name = f"blk.{layer}.{matrix}.weight"
                        assert made.raw(name).tobytes() == file.raw(name).tobytes()
                        seen.add(name)
    assert len(seen) == layout.layers * len(MATRICES)


def test_two_layers_never_write_the_same_elements(model: Path) -> None:
    with GgufFile.open(model) as file:
        layout = layout_of(file)
    own = [layout.own(layer, half) for layer in range(3) for half in (0, 1)]
    assert sorted(element for elements in own for element in elements) == layout.free
    assert all(own)


def test_model_with_too_many_layers_for_its_width_is_not_tested(tmp_path: Path) -> None:
    path = written(tmp_path, quant="Q4_1", n_layer=9)
    with GgufFile.open(path) as file, pytest.raises(Unsupported, match="9 layers of width 64"):
        layout_of(file)
    asker = asker_of(path, tmp_path / "made")
    found, why = see_in_place(asker)
    asker.close()
    assert (found, why.startswith("matrices are not tested")) == ([], True)


def test_engine_without_logits_is_asked_once_and_reported(model: Path, tmp_path: Path) -> None:
    asker = asker_of(model, tmp_path / "made", engine=Quiet.name)
    asked: list[str] = []
    asker.progress = asked.append
    found, why = see_in_place(asker)
    asker.close()
    assert not found
    assert why.endswith("shows no logits")
    assert sum("matrices at their places" in text for text in asked) == 1


def test_tensors_not_tested_in_their_place_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path, quant="Q4_1", n_layer=9)
    said = {v.summary for v in verdicts(path, "fast") if v.status == "not-applicable"}
    assert any("in their places: 9 layers of width 64" in summary for summary in said), said


def test_model_with_layers_of_several_widths_is_not_tested(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "narrow.gguf"
    with GgufFile.open(model) as file:
        name = "blk.1.ffn_down.weight"
        names = {n: n for n in file.tensors}
        recipe = Recipe(names=names, columns={name: 64}, stored=frozenset(names))
        rewrite(file, recipe, path)
    with GgufFile.open(path) as file, pytest.raises(Unsupported, match="ffn_down: its width"):
        layout_of(file)
