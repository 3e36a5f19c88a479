"""What is wrong in one layer is likely wrong in the next, which one more question shows."""

from pathlib import Path

from lockstep.harness.blackbox.naming import ROUTER
from tests.black_boxes import bisected, faults, model_of_arch
from tests.models import with_changed_weight

WRONG = "mutant:experts-ids-from-one"
ALIKE = "experts that are all alike"


def test_a_router_that_is_wrong_in_every_layer_is_asked_about_once_in_the_others(
    tmp_path: Path,
) -> None:
    """Each question writes all experts of a layer in F32: of a real model some seconds."""
    path = model_of_arch("qwen3moe", tmp_path, {})
    found = bisected(path, tmp_path / "made", engine=WRONG)
    wrong = faults(found)
    assert len(wrong) > 1
    assert set(map(tuple, wrong.values())) == {(f"FFN: {ROUTER}",)}
    first, *others = found.guilty
    assert len(first.asked or ()) > 1
    assert all(list(row.asked or ()) == [ALIKE] for row in others)


def test_what_else_is_wrong_in_a_layer_is_not_taken_for_the_router_of_those_before(
    tmp_path: Path,
) -> None:
    path = model_of_arch("qwen3moe", tmp_path, {})
    theirs = with_changed_weight(path, tmp_path / "b.gguf", "blk.1.attn_v.weight", 3, 5, 0.5)
    found = bisected(path, tmp_path / "made", engine=WRONG, subject_model=theirs)
    assert faults(found)[0] == [f"FFN: {ROUTER}"]
    assert faults(found)[1] == ["attention: matrix of values", f"FFN: {ROUTER}"]
