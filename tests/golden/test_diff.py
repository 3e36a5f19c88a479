"""`diff` describes all changes, and nothing else."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.golden.diff import diff
from lockstep.golden.store import BrokenGolden
from tests.golden.folders import copied, edit_json

LOGITS = "logits/f32.safetensors"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder from which other folders are copied."""
    return copied(tmp_path_factory.mktemp("first"))


def edit_logits(root: Path) -> None:
    tensors = load_file(root / LOGITS)
    tensors["logits"][2, 7] += np.float32(0.25)
    tensors["logits"][3, 1] += np.float32(0.125)
    save_file(tensors, root / LOGITS)


def test_equal_folders_have_no_differences(first: Path, tmp_path: Path) -> None:
    assert diff(first, copied(tmp_path)) == []


def test_edited_logit_is_reported_with_place_and_size(first: Path, tmp_path: Path) -> None:
    root = copied(tmp_path)
    edit_logits(root)
    (found,) = diff(first, root)
    assert (found.path, found.case, found.kind) == ("logits/f32.json", "logits", "changed")
    assert "2 of 11904 values changed, the worst at [2, 7] by 0.25" in found.text
    for name in ("logits/f32.json", LOGITS):
        (same,) = diff(first / name, root / name)
        assert same.text == found.text


def test_edited_ids_blocks_and_provenance_are_reported_by_case(first: Path, tmp_path: Path) -> None:
    root = copied(tmp_path)
    edit_json(root / "tokens/f32.json", lambda d: d["encode"][5]["ids"].append(7))
    edit_json(root / "logits/moe.json", lambda d: d["provenance"]["oracle"].update(version="x"))
    path = root / "dequant/q8_0.safetensors"
    tensors = load_file(path)
    tensors["expected"][0, 0] = -0.0 if not np.signbit(tensors["expected"][0, 0]) else 0.0
    save_file(tensors, path)
    tokens, moe, block = sorted(diff(first, root), key=lambda d: d.path)[::-1]
    assert tokens.case.startswith("encode-005")
    assert "elements became" in tokens.text
    assert moe.case == "provenance"
    assert "became 'x'" in moe.text
    assert block.case == "d-zero-ends"
    assert "in its bits only" in block.text


def test_edited_truth_bound_and_case_are_reported(first: Path, tmp_path: Path) -> None:
    root = copied(tmp_path)
    path = root / "ops/softmax_rows.safetensors"
    tensors = load_file(path)
    tensors["length-7/y.plain"][1, 2] += 0.5
    tensors["length-7/y.plain.allowed"][0, 0] *= 2
    save_file(tensors, path)
    edit_json(root / "ops/softmax_rows.json", lambda d: d["cases"].pop(0))
    found = {d.case: d for d in diff(first, root)}
    assert found["length-1"].kind == "removed"
    assert "1 of 14 values changed, the worst at [1, 2] by 0.5" in found["length-7/y.plain"].text
    assert found["length-7/y.plain.allowed"].kind == "changed"


def test_added_and_removed_cases_and_files_are_reported(first: Path, tmp_path: Path) -> None:
    root = copied(tmp_path)
    edit_json(root / "tokens/f32.json", lambda d: d["encode"].pop(0))
    (root / "logits/f16.json").unlink()
    (root / "logits/f16.safetensors").unlink()
    there = {(d.path, d.kind) for d in diff(first, root)}
    back = {(d.path, d.kind) for d in diff(root, first)}
    assert there == {("tokens/f32.json", "removed"), ("logits/f16.json", "removed")}
    assert back == {("tokens/f32.json", "added"), ("logits/f16.json", "added")}


def test_new_nan_is_the_worst_change(first: Path, tmp_path: Path) -> None:
    root = copied(tmp_path)
    tensors = load_file(root / LOGITS)
    tensors["logits"][0, 0] = 1e30
    tensors["logits"][1, 1] = np.nan
    save_file(tensors, root / LOGITS)
    (found,) = diff(first, root)
    assert "the worst at [1, 1] by inf" in found.text


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        ("logits", "logits/f32.json", "two files or two folders"),
        ("nowhere", "logits", "no such file"),
        ("manifest.json", "manifest.json", "there are no goldens of kind None"),
    ],
)
def test_folders_that_cannot_be_compared_are_refused(
    a: str, b: str, match: str, first: Path
) -> None:
    with pytest.raises(BrokenGolden, match=match):
        diff(first / a, first / b)
