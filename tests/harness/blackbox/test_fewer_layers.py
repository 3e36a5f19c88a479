"""Further runs of a large model use only its first layers. These layers keep their weight types."""

import errno
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import NoRoom
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking import facts
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.blackbox import asking
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.blackbox.fewer_layers import layers_asked
from lockstep.harness.blackbox.in_check import bisect_made_models, questions
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.check.check import open_plan
from lockstep.harness.records import Evaluation, Request, Verdict
from lockstep.harness.runs.known_failures import place_of
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.models import open_for_variants as llama_cpp_opened
from lockstep.harness.sites import IN_A_LAYER
from lockstep.harness.synth.any_arch import variant_named
from tests.black_boxes import with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import written
from tests.quiet_engines import ops_with

FIRST = "its first 2 of 6 layers: "


@pytest.fixture(autouse=True)
def every_model_counts_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)


def model(folder: Path, **recipe: Any) -> Path:
    return written(folder, **{"n_layer": 6, "quant": "Q4_0", **recipe})


def logits_of(model: Path, engine: str = "reference") -> list[Verdict]:
    plan = plan_for(model, engine=engine, oracle="llama.cpp", suites=("logits",), n_tokens=16)
    return with_made_models(plan)


@pytest.mark.parametrize("engine", ["reference", "honest:float64", "honest:activations-int8-rows"])
def test_honest_engines_agree_on_the_first_layers(engine: str, tmp_path: Path) -> None:
    (found,) = logits_of(model(tmp_path), engine)
    assert found.status == "agreed"
    whole, layers = found.summary.split(FIRST)
    assert "for ids where narrow integers end" in whole
    assert "in batches of" not in whole
    assert found.summary.endswith("; not compared: longer runs of its later layers")
    for way in ("in batches of", "beside another sequence", "with two sequences that come later"):
        assert way in layers


@pytest.mark.parametrize(
    "mistake",
    [
        "rows-beyond-tile",
        "batch-fifth-row-of-five",
        "cache-sequences-leak",
        "cache-cells-beyond-64",
    ],
)
def test_fault_in_other_batches_is_found_on_fewer_layers(mistake: str, tmp_path: Path) -> None:
    fine, *wrong = logits_of(model(tmp_path), f"mutant:{mistake}")
    assert fine.status == "agreed"
    assert wrong
    for found in wrong:
        assert (found.status, found.detail["at_fault"]) == ("diverged", "subject")
        assert found.summary.startswith(FIRST)


class Last(Reference, name="fewer layers: row 4999 is zero"):
    ops = ops_with(
        get_rows=lambda ops, w, ids: np.where(
            ids[:, None] == 4999, np.float32(0), Mirror.get_rows(ops, w, ids)
        )
    )


def test_id_missing_in_the_first_layers_is_tested_on_the_whole_model(tmp_path: Path) -> None:
    fine, wrong = logits_of(model(tmp_path, n_vocab=5000), Last.name)
    assert fine.status == "agreed"
    assert (wrong.status, wrong.detail["at_fault"]) == ("diverged", "subject")
    assert wrong.detail["asked"] == "for ids where narrow integers end"


def test_bisect_names_the_op_that_is_wrong_in_the_first_layers(tmp_path: Path) -> None:
    path = model(tmp_path)
    plan = plan_for(path, engine="mutant:rows-beyond-tile", oracle="llama.cpp", n_tokens=16)
    opened = open_plan(plan, lambda _: None)
    opened.context.on_made_models = questions(plan)
    try:
        wrong = with_made_models(replace(plan, suites=("logits",)))
        found = bisect_made_models(plan, opened.context, wrong)
    finally:
        opened.close()
    assert found is not None
    assert found.exit_code == 1
    assert found.first is not None
    assert (found.first.layer, found.first.site.name) == (0, "Qcur")
    assert found.asked.startswith("its first 2 of 6 layers, for 256 tokens in batches of ")


class Six(Reference, name="fewer layers: knows six alone"):
    """An engine whose code contains the number of layers."""

    def evaluate(self, request: Request) -> Evaluation:
        if "blk.5.attn_q.weight" not in self.loaded.file.tensors:
            raise RuntimeError("blk.5.attn_q.weight is missing")
        return super().evaluate(request)


def test_engine_that_refuses_shorter_models_is_tested_on_all_layers(tmp_path: Path) -> None:
    (found,) = logits_of(model(tmp_path), Six.name)
    assert found.status == "agreed"
    assert "in batches of" in found.summary
    assert "layers" not in found.summary


def test_engine_is_tested_on_all_layers_if_no_model_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(asking, "rewrite", full)
    (found,) = logits_of(model(tmp_path))
    assert found.status == "agreed"
    assert "in batches of" in found.summary
    assert "layers" not in found.summary


def test_model_with_two_layers_is_tested_whole(tmp_path: Path) -> None:
    (found,) = logits_of(model(tmp_path, n_layer=2))
    assert found.status == "agreed"
    assert "in batches of" in found.summary
    assert "first 2" not in found.summary


class Pipeline(Reference, name="fewer layers: four stages"):
    """An engine that computes long batches in several stages of at least one layer."""

    why: type[Exception] = RuntimeError

    def evaluate(self, request: Request) -> Evaluation:
        if self.loaded.graph.hparams.n_layer < 4 and max(map(len, request.batches)) > 32:
            raise self.why("four stages need four layers")
        return super().evaluate(request)


class RefusingPipeline(Pipeline, name="fewer layers: four stages, or it refuses"):
    why = NoRoom


class BySize(Reference, name="fewer layers: has a table by their number"):
    """An engine that recognises the model's size by its number of layers."""

    def make_model(self) -> Model:
        model = super().make_model()
        if (hparams := model.graph.hparams).n_layer != 6:
            model.graph.hparams = replace(hparams, eps=1e-2)
        return model


@pytest.mark.parametrize("engine", [Pipeline, RefusingPipeline, BySize])
def test_engine_that_is_right_only_on_all_layers_is_tested_on_all(
    engine: type[Reference], tmp_path: Path
) -> None:
    (found,) = logits_of(model(tmp_path), engine.name)
    assert found.status == "agreed"
    assert "in batches of" in found.summary
    assert "layers" not in found.summary


class OneSequence(Reference, name="fewer layers: refuses a second sequence"):
    def evaluate(self, request: Request) -> Evaluation:
        if any(batch.seq_ids.any() for batch in request.batches):
            raise NoRoom("no room for another sequence")
        return super().evaluate(request)


def test_refusal_of_a_second_sequence_does_not_repeat_all_questions(tmp_path: Path) -> None:
    fine, *left = logits_of(model(tmp_path), OneSequence.name)
    assert fine.status == "agreed"
    assert "in batches of" in fine.summary.split(FIRST)[1]
    assert [verdict.status for verdict in left] == ["not-compared", "not-compared"]
    assert all(verdict.summary.startswith(FIRST) for verdict in left)


def test_place_of_a_divergence_names_the_layers_and_the_run(tmp_path: Path) -> None:
    _, wrong = logits_of(model(tmp_path), "mutant:cache-cells-beyond-64")
    assert place_of(wrong.detail).startswith("its first 2 of 6 layers, for 256 tokens in batches")


class FromTheFourthLayer(Mirror):
    """An engine that loses the last row of small batches, in layers from the fourth on."""

    def linear(self, x: F32, weight: Weight) -> F32:
        out = super().linear(x, weight)
        found = IN_A_LAYER.fullmatch(weight.name)
        if found and int(found[1]) >= 3 and found[2] == "attn_q.weight" and len(x) in (3, 5, 7):
            out[-1] = 0
        return out


class OtherKernels(Reference, name="fewer layers: the others have kernels of their own"):
    ops = FromTheFourthLayer


def test_decode_tests_kernels_for_few_tokens_of_later_layers(tmp_path: Path) -> None:
    (found,) = logits_of(model(tmp_path), OtherKernels.name)
    assert found.status == "agreed"
    plan = plan_for(model(tmp_path), engine=OtherKernels.name, suites=("decode",), n_steps=64)
    first, *_ = with_made_models(plan)
    assert (first.status, first.detail["at_fault"]) == ("diverged", "subject")
    opened = open_plan(replace(plan, suites=("trace",)), lambda _: None)
    opened.context.on_made_models = questions(plan)
    try:
        found = bisect(opened.context)
    finally:
        opened.close()
    assert found.first is not None
    assert (found.first.layer, found.first.site.name) == (3, "Qcur")
    assert found.asked.endswith("in batches of 9, 3, 5, 7, 16, 16")


SOME = "for 61 tokens in batches of 14, 3, 5, 7, 16, 16"


@pytest.mark.parametrize("engine", [OtherKernels, Reference])
def test_engine_without_decode_gets_few_tokens_for_all_layers(
    engine: type[Reference], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = engine.describe
    monkeypatch.setattr(engine, "describe", lambda self: replace(says(self), levels=("logits",)))
    fine, *wrong = logits_of(model(tmp_path), engine.name)
    assert fine.status == "agreed"
    if engine is Reference:
        assert SOME in fine.summary
        assert not wrong
    else:
        (found,) = wrong
        assert (found.status, found.detail["at_fault"]) == ("diverged", "subject")
        assert found.detail["asked"] == SOME


def test_layer_without_rotation_is_among_the_first(tmp_path: Path) -> None:
    path = tmp_path / "smollm3.gguf"
    variant = replace(variant_named("smollm3"), sizes=(("n_layer", 14),))
    with llama_cpp_opened() as session:
        make_variant(variant, path, session=session)
    plan = plan_for(path, engine="llama.cpp", oracle="llama.cpp")
    with closing(SliceAsker(plan=plan, folder=tmp_path, progress=lambda _: None)) as asker:
        assert layers_asked(asker) == 4


def test_first_layers_include_each_type_of_the_engines_file(tmp_path: Path) -> None:
    ours, theirs = model(tmp_path), tmp_path / "theirs.gguf"
    with GgufFile.open(ours) as file:
        names = {name: name for name in file.tensors}
        stored = frozenset(names) - {"blk.2.ffn_down.weight"}  # this tensor becomes F32
        rewrite(file, Recipe(names=names, stored=stored), theirs)
    plan = plan_for(ours, subject_model=theirs)
    with closing(SliceAsker(plan=plan, folder=tmp_path, progress=lambda _: None)) as asker:
        assert layers_asked(asker) == 3
