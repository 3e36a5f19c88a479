"""Layers tested at their own place, with all other layers muted, if no model can consist of one
layer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.blackbox.bisection import of_layers, outside
from lockstep.harness.blackbox.layers import AT_ITS_PLACE
from lockstep.harness.blackbox.naming import FAILS_MUTED
from lockstep.harness.blackbox.rewriting import rewrite
from lockstep.harness.blackbox.slices import ADD_OTHERWISE, mute_other_layers
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import Evaluation, Request
from lockstep.harness.shadow.models import make_variant, make_variants, open_for_variants
from lockstep.harness.sites import IN_A_LAYER
from lockstep.harness.synth.any_arch import variant_named
from tests.black_boxes import asker_of, bisected, copy_with, faults

OF_ALL_KINDS = ("lfm2", "qwen35", "mamba", "jamba", "nemotron_h", "granitehybrid", "llama4")


def asker_for(arch: str, folder: Path, **changes: str) -> SliceAsker:
    (path,) = make_variants([arch], folder, quant="Q8_0")
    return asker_of(path, folder / "made", oracle="llama.cpp", **changes)


def larger(rows: F32, start: int) -> F32:
    return (rows * np.float32(1.37)).astype(np.float32)


def same(rows: F32, start: int) -> F32:
    return rows


def logits_of(asker: SliceAsker, change: Callable[[F32, int], F32]) -> F32:
    """Return llama.cpp's logits of a model with muted or otherwise changed layers."""
    recipe, path = mute_other_layers(asker.file, ()), asker.folder / "muted.gguf"
    changed = {
        name: change
        for name in recipe.names
        if IN_A_LAYER.fullmatch(name) and name not in recipe.changes
    }
    rewrite(asker.file, replace(recipe, changes={**recipe.changes, **changed}), path)
    runner = Runner(time_limit=asker.plan.time_limit, memory_limit=asker.plan.memory_limit)
    with runner.open("llama.cpp", path, asker.plan.settings) as session:
        found = session.ask("evaluate", Request(batches=(Batch.of([5, 9, 11, 3]),)))
    logits: F32 = found.value.logits[0]
    return logits


@pytest.mark.parametrize("arch", [*OF_ALL_KINDS, "gemma4"])
def test_muted_layers_add_nothing(arch: str, tmp_path: Path) -> None:
    asker = asker_for(arch, tmp_path)
    assert np.array_equal(logits_of(asker, same), logits_of(asker, larger))


@pytest.mark.parametrize("arch", [name for name in ADD_OTHERWISE if name != "refact"])
def test_removing_a_layer_changes_the_logits(arch: str, tmp_path: Path) -> None:
    asker = asker_for(arch, tmp_path)
    assert not np.array_equal(logits_of(asker, same), logits_of(asker, larger))


@pytest.mark.parametrize("arch", ["lfm2", "mamba"])
def test_right_engine_agrees_in_every_layer(arch: str, tmp_path: Path) -> None:
    (path,) = make_variants([arch], tmp_path, quant="Q8_0")
    found = bisected(path, tmp_path / "made", oracle="llama.cpp")
    assert (found.exit_code, found.left_out) == (0, ())
    assert AT_ITS_PLACE in {row.what for row in found.rows}
    assert found.lenses


@pytest.mark.parametrize(
    ("engine", "layer", "part"),
    [
        ("mutant:rope-half-split", 0, "attention: scores"),
        ("mutant:state-not-carried-lfm2", 1, "recurrent part: what earlier tokens leave"),
        ("mutant:conv-kernel-backwards-lfm2", 1, "recurrent part: its norm, matrices or conv"),
    ],
)
def test_a_wrong_layer_is_named_with_its_part(
    engine: str, layer: int, part: str, tmp_path: Path
) -> None:
    (path,) = make_variants(["lfm2"], tmp_path, quant="Q8_0")
    found = bisected(path, tmp_path / "made", oracle="llama.cpp", engine=engine)
    ((at, (name,)),) = faults(found).items()
    assert (at, name.startswith(part)) == (layer, True), name


def test_tensors_without_a_suffix_are_recognised(tmp_path: Path) -> None:
    """Faults in mamba's ssm_a and ssm_d once got no part name, because the search for matrices
    failed."""
    (path,) = make_variants(["mamba"], tmp_path, quant="Q8_0")
    found = bisected(path, tmp_path / "made", oracle="llama.cpp", engine="mutant:ssm-d-missing")
    assert set(faults(found)) == {0, 1}


def times_larger(raw: NDArray[np.uint8], format: type[WeightFormat]) -> None:
    raw.view(np.float32)[:] *= np.float32(1.25)


def test_wrong_residual_factor_is_named_in_its_layer(
    tmp_path: Path,
) -> None:
    (path,) = make_variants(["gemma4"], tmp_path, quant="Q8_0")
    tensor = "blk.0.layer_output_scale.weight"
    other = copy_with(path, tmp_path / "other.gguf", tensor, times_larger)
    found = bisected(path, tmp_path / "made", oracle="llama.cpp", subject_model=other)
    assert list(faults(found)) == [0]


def test_part_outside_layers_is_tested_with_the_fewest_layers(tmp_path: Path) -> None:
    """llama.cpp needs at least two of the model's four layers to load it."""
    path = tmp_path / "lfm2.gguf"
    with open_for_variants() as session:
        variant = replace(variant_named("lfm2"), sizes=(("n_layer", 4),))
        make_variant(variant, path, quant="Q8_0", session=session)
    asker = asker_of(path, tmp_path / "made", oracle="llama.cpp")
    answers = [row.answer.status for row in outside(asker)]
    with GgufFile.open(asker.folder / "oracle.gguf") as made:
        layers = {found[1] for name in made.tensors if (found := IN_A_LAYER.fullmatch(name))}
    assert (answers, len(layers)) == (["agreed", "agreed"], asker.layers_to_load)
    assert asker.layers_to_load == 2


@pytest.mark.parametrize("wrong", [0, 1])
def test_layer_is_not_blamed_for_the_fault_of_its_input(wrong: int, tmp_path: Path) -> None:
    """rwkv7 mixes the values of the first layer into the values of all other layers."""
    (path,) = make_variants(["rwkv7"], tmp_path)
    tensor = f"blk.{wrong}.time_mix_value.weight"
    other = copy_with(path, tmp_path / "other.gguf", tensor, times_larger)
    asker = asker_of(path, tmp_path / "made", oracle="llama.cpp", subject_model=other)
    rows = of_layers(asker, 2)
    assert [row.layer for row in rows if row.answer.differs] == [wrong]
    assert [row.answer.status for row in rows] == (
        ["agreed", "diverged"] if wrong else ["diverged", "not-compared"]
    )


class Fails(Reference, name="test:fails-where-layers-are-muted"):
    def evaluate(self, request: Request) -> Evaluation:
        raise RuntimeError


def test_failure_on_a_muted_model_is_reported(tmp_path: Path) -> None:
    (path,) = make_variants(["lfm2"], tmp_path, quant="Q8_0")
    asker = asker_of(path, tmp_path / "made", oracle="llama.cpp", engine=Fails.name)
    (row,) = outside(asker)
    assert (row.answer.status, row.parts) == ("crashed", (FAILS_MUTED,))
