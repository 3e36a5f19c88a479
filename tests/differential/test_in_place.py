"""Tests of matrices in place, for architectures with more norms than llama, compared with
llama.cpp."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.places import see_in_place
from lockstep.harness.shadow.models import make_variants
from tests.black_boxes import asker_of, bisected, copy_with, scaled


@pytest.mark.parametrize("arch", ["qwen3", "gemma3"])
def test_right_engines_agree_and_a_scale_off_by_a_thousandth_is_named(
    arch: str, tmp_path: Path
) -> None:
    (path,) = make_variants([arch], tmp_path, quant="Q4_1")
    same = asker_of(path, tmp_path / "made", oracle="llama.cpp")
    found, why = see_in_place(same)
    assert ([each.answer.status for each in found], why) == (["agreed"] * 5, "")
    for tensor in ("blk.1.attn_v.weight", "blk.0.ffn_down.weight"):
        other = copy_with(path, tmp_path / "other.gguf", tensor, scaled)
        asker = asker_of(path, tmp_path / "made", oracle="llama.cpp", subject_model=other)
        found, _ = see_in_place(asker)
        assert [each.tensors for each in found if each.answer.differs] == [(tensor,)]


def test_matrices_with_a_factor_get_exact_activations(tmp_path: Path) -> None:
    """Activations between the steps of their format would have a conversion error above a
    thousandth."""
    (path,) = make_variants(["mistral3"], tmp_path, quant="Q8_0")
    tensor = "blk.0.attn_output.weight"
    other = copy_with(path, tmp_path / "other.gguf", tensor, scaled)
    asker = asker_of(path, tmp_path / "made", oracle="llama.cpp", subject_model=other)
    assert "blk.0.attn_output.scale" in asker.file.tensors
    found, _ = see_in_place(asker)
    assert [each.tensors for each in found if each.answer.differs] == [(tensor,)]
    assert max(each.answer.allowed for each in found) < 1e-4


class HeadsBySameEps(Mirror):
    """An engine whose head norms use a constant eps in its code, equal to the file's eps."""

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 1e-5 if x.ndim == 3 else eps)


class EpsInTheCode(Reference, name="test:eps-of-heads-in-the-code"):
    ops = HeadsBySameEps


def test_engine_with_own_eps_for_head_norms_is_not_accused(
    tmp_path: Path,
) -> None:
    (path,) = make_variants(["qwen3"], tmp_path, quant="Q4_1")
    found = bisected(path, tmp_path / "made", oracle="llama.cpp", engine=EpsInTheCode.name)
    assert {each.answer.status for each in found.places} == {"agreed"}
    assert "attn_q and ffn_gate, attn_k: the engines differ in every place" in found.no_places
    assert found.exit_code == 0


class ItsGateOff(HeadsBySameEps):
    """An engine that reads the stored gate wrongly, and all other tensors correctly."""

    def linear(self, x: F32, weight: Weight) -> F32:
        found = super().linear(x, weight)
        wrong = weight.name == "blk.1.ffn_gate.weight" and weight.format.name != "F32"
        return (found * np.float32(1.001)).astype(np.float32) if wrong else found


class EpsInTheCodeAndWrong(Reference, name="test:eps-of-heads-in-the-code-and-wrong"):
    ops = ItsGateOff


def test_wrong_tensor_is_named_despite_own_eps_for_head_norms(tmp_path: Path) -> None:
    (path,) = make_variants(["qwen3"], tmp_path, quant="Q4_1")
    asker = asker_of(path, tmp_path / "made", oracle="llama.cpp", engine=EpsInTheCodeAndWrong.name)
    found, why = see_in_place(asker)
    assert {each.tensors for each in found if each.tensors} == {("blk.1.ffn_gate.weight",)}
    assert "attn_q, attn_k: the engines differ in every place" in why


class WithoutF32(HeadsBySameEps):
    """An engine without a kernel for query matrices in F32, although it has a kernel for other F32
    matrices."""

    def linear(self, x: F32, weight: Weight) -> F32:
        if weight.format.name == "F32" and weight.name == "blk.0.attn_q.weight":
            raise Unsupported("no kernel for F32")
        return super().linear(x, weight)


class EpsInTheCodeWithoutF32(Reference, name="test:eps-of-heads-in-the-code-without-f32"):
    ops = WithoutF32


def test_graph_fault_blames_no_weights_of_an_engine_without_f32(
    tmp_path: Path,
) -> None:
    (path,) = make_variants(["qwen3"], tmp_path, quant="Q4_1")
    engine = EpsInTheCodeWithoutF32.name
    asker = asker_of(path, tmp_path / "made", oracle="llama.cpp", engine=engine)
    found, why = see_in_place(asker)
    assert not any(each.tensors for each in found)
    assert "the engine does not answer for the F32 model" in why
    assert "no kernel for F32" in why
    assert "in every place" not in why
