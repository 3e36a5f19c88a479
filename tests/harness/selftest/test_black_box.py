"""The success rate of the black box: the counts of successes, and the true places of faults."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.catalogue.models import model_for
from lockstep.harness.catalogue.run import CataloguePart
from lockstep.harness.mutants.attention import MissingScale
from lockstep.harness.parallel.row_files import make_row
from lockstep.harness.records import EXACT
from lockstep.harness.selftest.black_box.named_parts import is_right
from lockstep.harness.selftest.black_box.one_layer import (
    BY_NAME,
    BY_NUMBER,
    IN_THE_FILE,
    OneLayerFault,
    damaged_file,
    engine_with,
    fault_named,
    faults_of,
)
from lockstep.harness.selftest.black_box.rates import LAYER, PART, counts, is_kept, lines
from lockstep.harness.selftest.black_box.run import chosen_of, run_black_box
from lockstep.harness.selftest.black_box.trials import BlackBoxRow, Claim, score_claims, tries
from lockstep.harness.selftest.black_box.truth import WrongPlace, wrong_places

BATCHES = (Batch.of([3, 1, 4, 1, 5]),)


def place(layer: int | None, node: str) -> WrongPlace:
    return WrongPlace(layer=layer, node=node)


def row(**changes: Any) -> BlackBoxRow:
    known: dict[str, Any] = {"engine": "a", "family": "rope", "model": "f32", "status": "diverged"}
    return BlackBoxRow(**(known | changes))


# --- wrong places ---------------------------------------------------------------------------------


def places_of(cls: type[Reference], model: Path, other: Path | None = None) -> set[WrongPlace]:
    with (
        LocalSession(Reference, model, EXACT) as honest,
        LocalSession(cls, other or model, EXACT) as engine,
    ):
        return set(wrong_places(honest, engine, BATCHES))


def test_op_is_wrong_only_at_its_node_in_every_layer(tmp_path: Path) -> None:
    path = model_for("f32", tmp_path)
    found = places_of(MissingScale, path)
    assert found == {place(0, "kq_soft_max"), place(1, "kq_soft_max")}
    assert places_of(Reference, path) == set()


@pytest.mark.parametrize(
    ("fault", "node"),
    [
        (OneLayerFault(way=BY_NAME, layer=1, where="attn_k.weight", change="one-sign"), "Kcur"),
        (
            OneLayerFault(way=BY_NUMBER, layer=1, where="Qcur_rope", change="not-turned"),
            "Qcur_rope",
        ),
        (
            OneLayerFault(way=BY_NUMBER, layer=1, where="kqv_out", change="last-head-lost"),
            "kqv_out",
        ),
    ],
)
def test_engine_is_wrong_in_one_layer_only(fault: OneLayerFault, node: str, tmp_path: Path) -> None:
    path = model_for("f32", tmp_path)
    assert fault_named(fault.engine) == fault
    assert places_of(engine_with(fault), path) == {place(1, node)}


@pytest.mark.parametrize("change", ["scaled-by-1.001", "one-sign", "rows-swapped", "head-permuted"])
@pytest.mark.parametrize("model", ["f32", "q8_0"])
def test_damaged_file_differs_in_one_tensor(change: str, model: str, tmp_path: Path) -> None:
    path, tensor = model_for(model, tmp_path), "attn_q.weight"
    fault = OneLayerFault(way=IN_THE_FILE, layer=1, where=tensor, change=change)
    other = damaged_file(fault, path, tmp_path)
    assert places_of(Reference, path, other) == {place(1, "Qcur")}
    with GgufFile.open(path) as right, GgufFile.open(other) as wrong:
        same = [n for n in right.tensors if np.array_equal(right.raw(n), wrong.raw(n))]
        assert set(right.tensors) - set(same) == {fault.tensor}
        format = WeightFormat.member(right.tensors[fault.tensor].type.name)
        assert np.isfinite(format.dequantize(wrong.raw(fault.tensor))).all()


def test_seed_decides_the_faults_of_one_layer(tmp_path: Path) -> None:
    path = model_for("f32", tmp_path)
    first, again, other = (list(faults_of(path, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert {fault.way for fault in first} == {IN_THE_FILE, BY_NAME, BY_NUMBER}
    assert len({fault.engine for fault in first}) == len(first)


# --- right answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "node", "right"),
    [
        ("FFN: activation", "ffn_swiglu", True),
        ("FFN: activation", "ffn_gate", False),
        ("FFN: up matrix", "ffn_swiglu", False),
        ("FFN: down matrix", "ffn_out", True),
        ("attention: matrix of values", "ffn_out", False),
        ("attention: rotation", "Qcur", False),
        ("attention: mask, softmax or cache", "kq_soft_max", True),
        ("attention: scores: queries, keys as they are kept, rotation or scale", "k_cache", True),
        ("attention: scores: queries, keys as they are kept, rotation or scale", "Vcur", False),
        ("output matrix", "result_norm", False),
        ("embedding", "result_output", False),
        ("embedding of some tokens, or logits of others", "result_output", True),
        ("FFN: activation, or a tensor that is read wrongly, by its number", "ffn_norm", True),
        ("FFN: activation, or a tensor that is read wrongly, by its number", "attn_norm", False),
        ("what the layer does by its number", "ffn_out", False),
        ("how attention and FFN are joined", "ffn_out", False),
        ("eps", "attn_norm", False),
        ("weights of norms", "attn_norm", False),
        ("blk.1.ffn_up.weight", "ffn_up", False),
        ("ffn_up.weight", "ffn_up", True),
    ],
)
def test_part_is_right_if_it_contains_the_wrong_node(part: str, node: str, right: bool) -> None:
    assert is_right(part, "mutant:some", "some", [place(0, node)]) == right


def test_node_with_several_roles_is_resolved_by_the_mistake() -> None:
    wrong = [place(0, "kq_soft_max")]
    mask, scores = "attention: mask, softmax or cache", "attention: scores: queries"
    for engine, part in (("mutant:mask-missing", mask), ("mutant:missing-scale", scores)):
        said = {name: is_right(name, engine, "attention", wrong) for name in (mask, scores)}
        assert said == {name: name == part for name in (mask, scores)}
    assert is_right("eps", "mutant:wrong-eps", "norms", [place(None, "result_norm")])


def test_answer_with_an_extra_layer_or_part_is_not_right() -> None:
    wrong = [place(1, "ffn_out")]
    down = Claim(layer=1, part="FFN: down matrix")
    assert all(score_claims([down], wrong, "a", "b")[what] for what in ("layer", "layers", "part"))
    more = score_claims([down, Claim(layer=2, part="FFN: down matrix")], wrong, "a", "b")
    assert (more["layer"], more["layers"], more["part"]) == (True, False, True)
    both = score_claims([down, Claim(layer=1, part="attention: rotation")], wrong, "a", "b")
    assert (both["layer"], both["layers"], both["part"]) == (True, True, False)
    before = score_claims([Claim(layer=None, part="embedding"), down], wrong, "a", "b")
    assert (before["layer"], before["part"]) == (False, False)
    nothing = score_claims([], wrong, "a", "b")
    assert (nothing["layer"], nothing["part"], nothing["seen"]) == (False, False, False)


def test_rate_counts_only_changed_logits_and_allows_some_misses() -> None:
    hidden = row(status="agreed", layer=True, layers=True, part=True)
    assert not counts(hidden)
    assert not is_kept([hidden])
    fine = row(layer=True, layers=True, part=True)
    assert is_kept([fine, hidden])
    assert (LAYER, PART) == (0.97, 0.85)
    assert not is_kept([fine] * 96 + [row(part=True)] * 4)
    assert is_kept([fine] * 97 + [row(part=True)] * 3)
    assert not is_kept([fine] * 84 + [row(layer=True, layers=True)] * 16)


def test_row_survives_json_and_a_miss_is_reported() -> None:
    missed = row(wrong=("ffn_out-1",), said=(("0", "FFN: activation"),), layer=True)
    held = json.loads(json.dumps(asdict(missed)))
    assert make_row(BlackBoxRow)(held) == missed
    assert any("not layers, part: wrong ffn_out-1, said 0: FFN" in line for line in lines([missed]))


# --- engines --------------------------------------------------------------------------------------


def test_fault_of_one_layer_is_named_for_any_mistake(tmp_path: Path) -> None:
    faults = (
        OneLayerFault(way=IN_THE_FILE, layer=1, where="ffn_up.weight", change="scaled-by-1.001"),
        OneLayerFault(way=BY_NUMBER, layer=1, where="ffn_swiglu", change="never-negative"),
        OneLayerFault(way=BY_NUMBER, layer=0, where="kq_soft_max", change="all-alike"),
    )
    rows = tries(CataloguePart(model="f32", engines=tuple(fault.engine for fault in faults)))
    assert [(r.layer, r.layers, r.part) for r in rows] == [(True, True, True)] * 3
    assert rows[0].said == (("1", "FFN: up matrix"),)


def test_unsteady_mistake_is_reported_and_the_trial_continues() -> None:
    """The mistake affects every fifth norm, and a layer of qwen3 has four norms."""
    part = CataloguePart(model="arch:qwen3", engines=("mutant:last-norm-missing",))
    (found,) = tries(part)
    assert found.status.startswith("not bisected: mutant:last-norm-missing is not deterministic")


def test_stored_trial_is_not_repeated(tmp_path: Path) -> None:
    out, file = Quietly(), tmp_path / "rows.jsonl"
    options: dict[str, Any] = {"only": "norms", "sample": 1, "seed": 5, "executor": None}
    run_black_box(out, **options, file=file)
    written = file.read_text()
    assert written.count("\n") == 1
    run_black_box(out, **options, file=file)
    assert file.read_text() == written


class Quietly:
    def line(self, text: str) -> None:
        pass

    def progress(self, case: str, text: str) -> None:
        pass


def test_family_has_mistakes_of_a_model_or_of_one_layer() -> None:
    pairs = [("f32", "mutant:missing-scale"), ("q8_0", "one-layer:file:1:a.weight:one-sign")]
    assert chosen_of(pairs, "one-layer") == pairs[1:]
    assert chosen_of(pairs, "attention") == chosen_of(pairs, "f32") == pairs[:1]
