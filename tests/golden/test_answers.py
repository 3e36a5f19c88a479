"""Answers in files: right answers agree, wrong answers are named, missing answers are not
compared."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from lockstep.golden.answers import counted_verdicts, judge_answers
from lockstep.golden.store import BrokenGolden
from lockstep.harness.cli import app
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import Verdict
from tests.golden.test_ops import right_answers, vectors

OPS = ("ROPE", "softmax_rows", "route_topk_softmax", "ARGSORT")


def tensors_of(op: str) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    found = vectors(op)
    return {
        f"{row['id']}/{name}": value
        for row in found.document["cases"]
        for name, value in right_answers(found, row).items()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for op in OPS:
        save_file(tensors_of(op), tmp_path / f"{op.lower()}.safetensors")
    return tmp_path


def judged(folder: Path, *only: str) -> list[Verdict]:
    return list(judge_answers(folder, only=only or [op.lower() for op in OPS]))


def changed(folder: Path, op: str, **tensors: np.ndarray | None) -> None:  # type: ignore[type-arg]
    """Write an answer file with changed or removed (None) tensors; `__` in a name stands for
    `/`."""
    new: Mapping[str, np.ndarray | None] = {  # type: ignore[type-arg]
        **tensors_of(op),
        **{name.replace("__", "/"): value for name, value in tensors.items()},
    }
    kept = {name: value for name, value in new.items() if value is not None}
    save_file(kept, folder / f"{op.lower()}.safetensors")


def test_right_answers_agree(folder: Path) -> None:
    found = judged(folder)
    assert [v.status for v in found] == ["agreed"] * len(OPS)
    assert exit_code(found) == 0


def test_a_wrong_element_is_named_with_its_place_and_its_bound(folder: Path) -> None:
    name = "length-7/y"
    wrong = tensors_of("softmax_rows")[name].copy()
    wrong[1, 3] += np.float32(0.001)
    changed(folder, "softmax_rows", **{name: wrong})
    (found,) = judged(folder, "softmax_rows")
    assert found.status == "diverged"
    assert "softmax_rows, length-7, y[1, 3]: expected" in found.summary
    assert "allowed" in found.summary
    assert f"{wrong[1, 3]:.9g}" in found.summary
    assert exit_code([found]) == 1


def test_missing_answer_is_not_compared(folder: Path) -> None:
    changed(folder, "softmax_rows", **{"length-7/y": None})
    found = judged(folder)
    assert sorted(v.status for v in found) == ["agreed"] * len(OPS) + ["not-compared"]
    assert exit_code(found) == 3
    assert exit_code(counted_verdicts(list(judge_answers(folder)))) == 3
    assert exit_code(counted_verdicts(list(judge_answers(folder, only=["rope", "add"])))) == 3


def test_engine_with_some_operations_conforms_in_those(folder: Path) -> None:
    found = list(judge_answers(folder))
    assert found[-1].status == "not-compared"
    assert "no answers to" in found[-1].summary
    assert {"add", "mul_mat"} <= set(found[-1].detail["missing"])
    assert exit_code(counted_verdicts(found)) == 0


def test_folder_without_answers_never_conforms(tmp_path: Path) -> None:
    assert exit_code(counted_verdicts(list(judge_answers(tmp_path)))) == 3
    (tmp_path / "sofmax.safetensors").write_bytes(b"")
    assert exit_code(counted_verdicts(list(judge_answers(tmp_path)))) == 3


def test_file_that_answers_nothing_is_named_and_others_are_judged(folder: Path) -> None:
    save_file({"x": np.zeros(1, np.float32)}, folder / "sofmax.safetensors")
    (folder / "notes.txt").write_text("mine")
    (folder / "add.safetensors").mkdir()
    *_, foreign = found = list(judge_answers(folder))
    assert foreign.detail["foreign"] == ["add.safetensors", "notes.txt", "sofmax.safetensors"]
    assert [v.status for v in found[: len(OPS)]] == ["agreed"] * len(OPS)
    assert exit_code(counted_verdicts(found)) == 0


def test_a_misspelt_case_is_named_and_its_operation_is_not_complete(folder: Path) -> None:
    value = tensors_of("softmax_rows")["length-7/y"]
    changed(folder, "softmax_rows", **{"length-7/y": None, "lenght-7/y": value})
    found = judged(folder, "softmax_rows", "rope")
    assert [v.status for v in found] == ["not-compared", "not-compared", "agreed", "agreed"]
    assert "no case has lenght-7/y" in found[0].summary
    assert "no answers to 1 of" in found[1].summary
    assert exit_code(counted_verdicts(found)) == 3


def test_case_without_one_of_its_outputs_is_not_compared(folder: Path) -> None:
    changed(folder, "route_topk_softmax", **{"ties-normed/ids": None})
    found = judged(folder, "route_topk_softmax")
    assert [v.status for v in found] == ["not-compared", "agreed"]
    assert "ties-normed" in found[0].summary


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.zeros((2, 8), np.float32), "expected shape (2, 7), got (2, 8)"),
        (np.zeros((2, 7), np.float64), "expected float32, got float64"),
        (np.full((2, 7), np.nan, np.float32), "got nan"),
    ],
)
def test_other_shape_or_type_is_wrong(
    values: np.ndarray,  # type: ignore[type-arg]
    says: str,
    folder: Path,
) -> None:
    changed(folder, "softmax_rows", **{"length-7/y": values})
    (found,) = judged(folder, "softmax_rows")
    assert says in found.summary


def test_unknown_operation_or_folder_is_refused(folder: Path) -> None:
    with pytest.raises(BrokenGolden, match="no vectors of an operation 'ropes'"):
        judged(folder, "ropes")
    with pytest.raises(BrokenGolden, match="is not a folder"):
        judged(folder / "none", "rope")


def test_invalid_safetensors_file_spoils_no_other_verdict(folder: Path) -> None:
    (folder / "rope.safetensors").write_bytes(b"\xff" * 20)
    found = judged(folder)
    assert sorted(v.status for v in found) == ["agreed"] * 3 + ["not-compared"]
    assert "not a safetensors" in next(v.summary for v in found if v.case == "rope")
    assert exit_code(counted_verdicts(found)) == 3


def test_command_lists_unanswered_operations_and_conforms(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    done = CliRunner().invoke(app, ["golden", "ops", "--answers", str(folder)])
    assert done.exit_code == 0, done.output
    assert "no answers to" in done.output
    assert "answer no operation: notes.txt" in done.output
    assert f"{len(OPS)} operations agree, 0 do not" in done.output


@pytest.mark.parametrize(("only", "code"), [("softmax_rows", 0), ("add", 3), ("ropes", 2)])
def test_the_command_ends_with_the_right_code(only: str, code: int, folder: Path) -> None:
    done = CliRunner().invoke(app, ["golden", "ops", "--answers", str(folder), "--only", only])
    assert done.exit_code == code, done.output


def test_command_shows_the_wrong_output(folder: Path) -> None:
    name = "a-hidden-row/y"
    nan = np.full_like(tensors_of("softmax_rows")[name], np.nan)
    changed(folder, "softmax_rows", **{name: nan})
    done = CliRunner().invoke(
        app, ["golden", "ops", "--answers", str(folder), "--only", "softmax_rows"]
    )
    assert done.exit_code == 1
    assert "diverged: softmax_rows, a-hidden-row, y[0, 0]" in done.output
    assert "0 operations agree, 1 do not" in done.output
