"""Where there is no model of one layer, it is asked at its place, the others muted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.blackbox.layers import AT_ITS_PLACE
from lockstep.harness.blackbox.rewriting import rewrite
from lockstep.harness.blackbox.slices import (
    ADD_OTHERWISE,
    ENDS_OF_HALVES,
    IN_A_LAYER,
    is_one_of,
    muted,
)
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import Request
from lockstep.harness.shadow.models import make_variants
from tests.black_boxes import asker_of, bisected, faults

OF_ALL_KINDS = ("lfm2", "qwen35", "mamba", "jamba", "nemotron_h", "granitehybrid", "llama4")
SCALES_ALL = "layer_output_scale"  # of gemma4: what it multiplies is the residual


def asker_for(arch: str, folder: Path, **changes: str) -> SliceAsker:
    (path,) = make_variants([arch], folder, quant="Q8_0")
    return asker_of(path, folder / "made", oracle="llama.cpp", **changes)


def larger(rows: F32, start: int) -> F32:
    return (rows * np.float32(1.37)).astype(np.float32)


def same(rows: F32, start: int) -> F32:
    return rows


def logits_of(asker: SliceAsker, change: Callable[[F32, int], F32]) -> F32:
    """llama.cpp's, of a model whose layers are muted and otherwise changed."""
    recipe, path = muted(asker.file, ()), asker.folder / "muted.gguf"
    changed = {
        name: change
        for name in recipe.names
        if (inside := IN_A_LAYER.fullmatch(name))
        and not is_one_of(inside[2], (*ENDS_OF_HALVES, SCALES_ALL))
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
def test_of_those_left_out_they_do(arch: str, tmp_path: Path) -> None:
    asker = asker_for(arch, tmp_path)
    assert not np.array_equal(logits_of(asker, same), logits_of(asker, larger))


@pytest.mark.parametrize("arch", ["lfm2", "mamba"])
def test_a_right_engine_agrees_and_nothing_is_left_out(arch: str, tmp_path: Path) -> None:
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


def test_tensors_without_an_end_to_their_name_are_known(tmp_path: Path) -> None:
    """ssm_a and ssm_d of mamba: parts were not named, since looking for matrices failed."""
    (path,) = make_variants(["mamba"], tmp_path, quant="Q8_0")
    found = bisected(path, tmp_path / "made", oracle="llama.cpp", engine="mutant:ssm-d-missing")
    assert set(faults(found)) == {0, 1}
