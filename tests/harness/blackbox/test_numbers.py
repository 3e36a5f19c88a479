"""Faults that depend on a layer's number. The only layer of a slice has the number 0. So slices may
hide such a fault, or show it in another layer."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.model import Model
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.blackbox import numbers
from lockstep.harness.blackbox.asking import SliceAnswer
from lockstep.harness.blackbox.bisection import BlackBoxBisection, bisect_black_box
from lockstep.harness.blackbox.in_place import LOOKS
from lockstep.harness.blackbox.layers import LayerRow
from lockstep.harness.blackbox.naming import Part
from lockstep.harness.blackbox.numbers import ANOTHERS, by_its_number, guilty_among
from lockstep.harness.blackbox.places import SeenInPlace, put_together
from lockstep.harness.blackbox.slices import n_layers
from lockstep.harness.catalogue.opening import KnownModels
from lockstep.harness.selftest.black_box.one_layer import (
    BY_NAME,
    BY_NUMBER,
    OneLayerFault,
    Spoilt,
    engine_with,
)
from tests.black_boxes import asker_of, bisected, faults, model_of_arch
from tests.models import with_changed_weight, written

AGREES = SliceAnswer(status="agreed", summary="")
DIFFERS = SliceAnswer(status="diverged", summary="")


def bisected_with(fault: OneLayerFault, path: Path, folder: Path) -> BlackBoxBisection:
    start = partial(LocalSession, engine_with(fault))
    models = KnownModels(folder=folder)
    asker = replace(asker_of(path, folder / "made"), opening=models.opening(start))
    try:
        return bisect_black_box(asker)
    finally:
        asker.close()
        models.close()


def test_fault_of_the_first_layer_is_not_blamed_on_other_slices(tmp_path: Path) -> None:
    fault = OneLayerFault(way=BY_NUMBER, layer=0, where="Qcur_rope", change="not-turned")
    found = bisected_with(fault, written(tmp_path, n_layer=3), tmp_path)
    assert faults(found) == {0: ["attention: rotation, by its number"]}
    assert [row.layer for row in found.rows[2:]] == [0, 1, 2]


class LastLayer(Reference, name="numbers: the last layer does not turn queries"):
    def make_model(self) -> Model:
        model = super().make_model()
        last = n_layers(self.file) - 1
        fault = OneLayerFault(way=BY_NUMBER, layer=last, where="Qcur_rope", change="not-turned")

        def decode(right: Any, batch: Any, memory: Any, probe: Any, **options: Any) -> Any:
            return right(batch, memory, Spoilt(probe, fault), **options)

        put(model, "decode", decode)
        return model


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_fault_of_the_last_layer_is_not_blamed_on_other_slices(quant: str, tmp_path: Path) -> None:
    """The engine is wrong in the last layer of each model. In a slice of one layer, the only layer
    is the last."""
    path = written(tmp_path, n_layer=3, quant=quant)
    found = bisected(path, tmp_path / "made", engine=LastLayer.name)
    assert faults(found) == {2: ["attention: rotation, by its number"]}


def test_miscounted_layers_are_named_and_no_other_layers(
    tmp_path: Path,
) -> None:
    """The engine gives full attention to the first of six layers instead of the last.

    The slices of layers 1 to 4 are wrong too, because each of these layers is the first of its
    model.
    """
    window = {"gemma3.attention.sliding_window": ("U32", 3)}
    path = model_of_arch("gemma3", tmp_path, window)
    engine = "mutant:windows-of-gemma3-from-the-first"
    found = bisected(path, tmp_path / "made", engine=engine, oracle="llama.cpp")
    part = "attention: mask, softmax or cache, by its number"
    assert faults(found) == {0: [part], 5: [part]}
    assert "counts the kinds of layers differently" in found.guilty[0].parts[0].words


def test_tensor_of_one_layer_is_not_blamed_on_layer_numbers(tmp_path: Path) -> None:
    path = model_of_arch("gemma3", tmp_path, {})
    off = with_changed_weight(path, tmp_path / "off.gguf", "blk.2.ffn_down.weight", 3, 5, 0.5)
    found = bisected(path, tmp_path / "made", oracle="llama.cpp", subject_model=off)
    assert faults(found) == {2: ["FFN: down matrix"]}


def test_op_of_a_later_layer_is_named_at_its_place(
    tmp_path: Path,
) -> None:
    """The fault is also visible at the places of the two matrices that this op uses."""
    fault = OneLayerFault(way=BY_NUMBER, layer=2, where="ffn_swiglu", change="never-negative")
    found = bisected_with(fault, written(tmp_path, n_layer=3), tmp_path)
    ((layer, (part,)),) = faults(found).items()
    assert layer == 2
    assert part.startswith("FFN: activation, or ")
    assert part.endswith("or a tensor that is read wrongly, by its number")
    assert put_together(found.places) == [
        "blk.2.ffn_up.weight and ffn_gate.weight, or their common product"
    ]


def test_misnamed_tensor_is_found_in_its_layer(tmp_path: Path) -> None:
    """The engine reads a wrong tensor, whatever this tensor contains. A simpler tensor in its place
    therefore does not hide the fault."""
    fault = OneLayerFault(way=BY_NAME, layer=1, where="attn_v.weight", change="scaled-by-1.001")
    found = bisected_with(fault, written(tmp_path, n_layer=3), tmp_path)
    ((layer, (part,)),) = faults(found).items()
    assert layer == 1
    assert part.startswith("attention: ")
    assert part.endswith(", or a tensor that is read wrongly, by its number")


def test_layer_with_another_layers_tensors_is_named(tmp_path: Path) -> None:
    """The engine reads another layer's tensors in one layer. A muted layer adds the same values
    with both sets of tensors, so without further tests both layers would seem to differ by their
    number."""
    path = written(tmp_path, n_layer=3)
    found = bisected(path, tmp_path / "made", engine="mutant:first-layer-twice")
    assert faults(found) == {1: [ANOTHERS.name]}
    assert [row.layer for row in found.rows[2:]] == [0, 1, 2, 1, 2]


def test_one_wrong_layer_of_many_is_found_in_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(asker: Any, layers: Sequence[int]) -> SliceAnswer:
        asked.append(tuple(layers))
        return DIFFERS if 5 in layers else AGREES

    def named(asker: Any, layer: int, answer: SliceAnswer) -> LayerRow:
        return LayerRow(layer=layer, answer=answer)

    monkeypatch.setattr(numbers, "with_others_muted", answer)
    monkeypatch.setattr(numbers, "name_parts", named)
    asker: Any = type("Asker", (), {"progress": staticmethod(lambda text: None)})
    rows = list(guilty_among(asker, range(16)))
    assert [row.layer for row in rows] == list(range(16))
    assert [row.layer for row in rows if row.answer.differs] == [5]
    assert len(asked) == 9


def test_unnamed_part_may_be_a_misread_tensor() -> None:
    seen = Part(name="attention: rotation", words="")
    left = Part(name="FFN: activation", words="", left=True)
    assert by_its_number(seen).name == "attention: rotation, by its number"
    assert " or a tensor that is read wrongly, by its number" in by_its_number(left).name


def test_matrices_of_one_layer_are_named_with_their_product() -> None:
    def seen(*names: str) -> SeenInPlace:
        tensors = tuple(f"blk.{name}.weight" for name in names)
        return SeenInPlace(look=LOOKS[1], answer=DIFFERS, tensors=tensors)

    both = put_together([seen("1.ffn_up", "0.attn_q"), seen("1.ffn_gate", "0.ffn_down")])
    assert both == ["blk.1.ffn_up.weight and ffn_gate.weight, or their common product"]
    assert not put_together([seen("1.ffn_up"), seen("2.ffn_gate", "1.attn_q")])
    assert len(put_together([seen("0.attn_q"), seen("0.attn_k")])) == 1
