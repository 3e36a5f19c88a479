"""Matrices at their places, of architectures with more norms than llama has, against llama.cpp."""

from pathlib import Path

import pytest

from lockstep.harness.blackbox.places import see_in_place
from lockstep.harness.shadow.models import make_variants
from tests.black_boxes import asker_of, copy_with, scaled


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
