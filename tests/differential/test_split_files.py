"""A model split over several files is checked like a model in one file; users name its first
part."""

import shutil
import time
from pathlib import Path

import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model, part_name
from lockstep.engine.model import Model
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.harness.cli import app
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.twin import write_twin
from tests.models import with_changed_weight, written
from tests.split_files import write_parts

FEW = ("--tokens", "6", "--steps", "2", "--quiet")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return written(tmp_path, "whole.gguf")


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    """Write the parts of a split model. The first part has no tensors, as with `gguf-split
    --no-tensor-first-split`."""
    with GgufFile.open(whole) as file:
        n = len(file.tensors)
    return write_parts(whole, tmp_path, (0, n // 2, n - n // 2))


def test_split_model_gives_the_same_results_as_one_file(whole: Path, parts: list[Path]) -> None:
    def logits(path: Path) -> bytes:
        model = Model(path, ReferenceOps())
        return model.decode(Batch.of([1, 2, 3]), model.new_memory()).tobytes()

    assert logits(parts[0]) == logits(whole)


def test_twin_of_a_split_model_is_one_file(tmp_path: Path) -> None:
    model = written(tmp_path, "q.gguf", quant="Q8_0")
    with GgufFile.open(model) as file:
        n = len(file.tensors)
    first, _ = write_parts(model, tmp_path, (1, n - 1))
    write_twin(model, tmp_path / "a.gguf")
    write_twin(first, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_twin_overwrites_no_part_of_a_model(tmp_path: Path) -> None:
    model = written(tmp_path, "q.gguf", quant="Q8_0")
    with GgufFile.open(model) as file:
        n = len(file.tensors)
    first, second = write_parts(model, tmp_path, (1, n - 1))
    raw = second.read_bytes()
    with pytest.raises(InvalidModel, match="is one of the 2 model files"):
        write_twin(first, second)
    assert second.read_bytes() == raw


def test_check_compares_the_tensors_of_all_parts_with_llama_cpp(
    parts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = lockstep(capsys, "check", str(parts[0]), *FEW)
    assert (code, "conform: everything compared agrees" in said) == (0, True), said


def test_changed_weight_in_another_part_is_found_and_bisected(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for part in parts:
        shutil.copy(part, folder)
    last = folder / parts[-1].name
    with GgufFile.open(last) as file:
        name = next(n for n in file.tensors if n.endswith("ffn_down.weight"))
    with_changed_weight(last, last, name, 3, 5, 0.5)
    subject = ("--subject-model", str(folder / parts[0].name))
    code, said = lockstep(capsys, "check", str(parts[0]), *subject, *FEW, "--suite", "dequant")
    assert code == 1
    assert name in said
    place = ("--report", str(tmp_path))
    code, said = lockstep(capsys, "bisect", str(parts[0]), *subject, *place, "--tokens", "6", "-q")
    assert code == 1
    assert f"its weight is {name}" in said


def test_missing_part_or_wrong_start_is_one_clear_error(
    parts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = lockstep(capsys, "check", str(parts[1]), "--quiet")
    assert code == 2
    assert f"it is part 2 of 3: name the first, {parts[0].name}" in said
    parts[2].unlink()
    for command in ("check", "bisect", "shadow"):
        code, said = lockstep(capsys, command, str(parts[0]), "--quiet")
        assert code == 2
        assert f"the model is split, but its part {parts[2].name} is missing" in said


def test_unrelated_parts_are_refused(whole: Path, tmp_path: Path) -> None:
    with GgufFile.open(whole) as file:
        n = len(file.tensors)
    first, second = write_parts(whole, tmp_path, (2, n - 2))
    (tmp_path / "other").mkdir()
    few = write_parts(whole, tmp_path / "other", (2, n - 3))
    shutil.copy(few[1], second)
    with pytest.raises(InvalidModel, match=rf"split.tensors.count is {n}, but the 2 parts hold"):
        open_model(first)
    shutil.copy(first, second)
    with pytest.raises(InvalidModel, match=r"does not say split.no = 1"):
        open_model(first)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(InvalidModel, match=r"its name is not NAME-00001-of-00002.gguf"):
        open_model(tmp_path / "renamed.gguf")


def test_a_tensor_in_two_parts_is_refused(whole: Path, tmp_path: Path) -> None:
    with GgufFile.open(whole) as file:
        n = len(file.tensors)
    first, second = write_parts(whole, tmp_path, (n, 0))
    (tmp_path / "other").mkdir()
    _, again = write_parts(whole, tmp_path / "other", (0, n))
    shutil.copy(again, second)
    with pytest.raises(InvalidModel, match="two of its 2 parts hold the tensor"):
        open_model(first)


def lockstep(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        app(list(arguments))
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out + err


def test_huge_part_count_is_refused_before_names_are_built(tmp_path: Path) -> None:
    """The paths of the parts once took all memory."""
    path = tmp_path / part_name("m", 0, 3_000_000_000)
    write_gguf(path, {"split.count": ("U32", 3_000_000_000), "split.no": ("U16", 0)}, [])
    with pytest.raises(InvalidModel, match=r"split.count is 3000000000, expected at most 65535"):
        open_model(path)


def test_one_tensor_in_two_parts_is_found_in_linear_time(
    tmp_path: Path,
) -> None:
    """Counting each name among all names once took minutes for 40,000 names."""
    n = 20_000
    for number, first in enumerate((0, n - 1)):
        keys = {"split.count": ("U16", 2), "split.no": ("U16", number)}
        rows = [(str(i), (0,), "F32", b"") for i in range(first, first + n)]
        write_gguf(tmp_path / part_name("m", number, 2), keys, rows)
    started = time.process_time()
    with pytest.raises(InvalidModel, match=f"two of its 2 parts hold the tensor '{n - 1}'"):
        open_model(tmp_path / part_name("m", 0, 2))
    assert time.process_time() - started < 20
