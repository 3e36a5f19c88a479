"""`lockstep twin` writes the same values and keys, without quantised tensors."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.synth import twin
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.twin import write_twin
from tests.models import with_changed_weight, written
from tests.plans import plan_of, verdicts_of

import_members("lockstep.engine.quants")
KINDS = sorted(set(WeightFormat.family) - set(twin.KEPT))


def dequant(model: Path, other: Path) -> tuple[int, list[tuple[str, str]]]:
    plan = plan_of(model, subject_model=other, oracle="reference")
    found = verdicts_of(plan, "dequant")
    return exit_code(found), [(v.status, v.summary) for v in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_twin_has_the_weights_of_its_model_bit_for_bit(kind: str, tmp_path: Path) -> None:
    format = WeightFormat.member(kind)
    n_blocks = 3 * 256 // format.weights
    raw = np.random.default_rng(7).integers(0, 256, n_blocks * format.layout.itemsize, np.uint8)
    model, copy = tmp_path / "model.gguf", tmp_path / "twin.gguf"
    vector = np.float32([1, -0.0, np.nan])
    metadata = {"general.architecture": ("STR", "x"), "general.file_type": ("U32", 3)}
    write_gguf(model, metadata, [("a", (256, 3), kind, raw), ("b", (3,), "F32", vector)])
    assert write_twin(model, copy) == 1
    with GgufFile.open(copy) as made:
        assert [(t.name, t.ne, t.type.name) for t in made.tensors.values()] == [
            ("a", (256, 3), "F32"),
            ("b", (3,), "F32"),
        ]
        assert made.raw("a").tobytes() == format.dequantize(raw).tobytes()
        assert made.raw("b").tobytes() == vector.tobytes()


def test_twin_changes_no_metadata_except_the_file_type(tmp_path: Path) -> None:
    model, copy = tmp_path / "model.gguf", tmp_path / "twin.gguf"
    metadata = {
        "general.architecture": ("STR", "x"),
        "general.file_type": ("U32", 0x77),
        "general.quantization_version": ("U32", 2),
        "general.alignment": ("U32", 64),
        "words": ("ARR[STR]", ["a", b"\xff\xfe", ""]),
        "deep": ("ARR[ARR[I8]]", [[1], [-1, 2]]),
        "small": ("F32", 1e-12),
        "no": ("BOOL", False),
    }
    half = np.float16([1, 2])
    write_gguf(model, metadata, [("a", (2,), "F16", half)], version=2, alignment=64)
    write_twin(model, copy)
    before, after = model.read_bytes(), copy.read_bytes()
    end = before.index(b"\1\0\0\0\0\0\0\0a")  # the beginning of the table of tensors
    assert before[:end].count(b"\x77\0\0\0") == 1
    assert before[:end].replace(b"\x77\0\0\0", bytes(4)) == after[:end]


def test_tensor_of_many_chunks_is_complete_but_never_whole_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twin, "CHUNK", 1 << 12)
    raw = np.random.default_rng(7).integers(0, 120, (4096 + 32) * 34, np.uint8)
    model, copy = tmp_path / "model.gguf", tmp_path / "twin.gguf"
    write_gguf(model, {}, [("a", (32, 4096 + 32), "Q8_0", raw)])
    WeightFormat.member("Q8_0").dequantize(raw[:34])
    tracemalloc.start()
    try:
        write_twin(model, copy)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 18  # the twin itself is twice as large
    with GgufFile.open(copy) as made:
        assert made.raw("a").tobytes() == WeightFormat.member("Q8_0").dequantize(raw).tobytes()


def test_unquantised_model_is_its_own_twin(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="needs no twin"):
        write_twin(written(tmp_path), tmp_path / "twin.gguf")
    assert not (tmp_path / "twin.gguf").exists()


def test_model_itself_is_not_overwritten(tmp_path: Path) -> None:
    model = written(tmp_path, quant="Q4_1")
    before = model.read_bytes()
    with pytest.raises(InvalidModel, match="name another file"):
        write_twin(model, model)
    assert model.read_bytes() == before


def test_check_compares_a_twin_with_its_model(tmp_path: Path) -> None:
    model, copy = written(tmp_path, quant="Q4_1"), tmp_path / "twin.gguf"
    write_twin(model, copy)
    code, found = dequant(model, copy)
    assert code == 0
    assert any(said.startswith("Q4_1 as F32: ") for _, said in found)


def test_twin_with_two_exchanged_weights_is_caught_with_their_name(
    tmp_path: Path,
) -> None:
    """A reader that swaps the nibbles would exchange these weights."""
    model, copy = written(tmp_path, quant="Q4_1"), tmp_path / "twin.gguf"
    write_twin(model, copy)
    tensor, row = "blk.1.ffn_down.weight", 5
    with GgufFile.open(copy) as file:
        weights = file.raw(tensor).view(np.float32).reshape(file.tensors[tensor].shape)
        low, high = (float(weights[row, column]) for column in (3, 3 + 16))
    assert low != high
    with_changed_weight(copy, copy, tensor, row, 3, high - low)
    with_changed_weight(copy, copy, tensor, row, 3 + 16, low - high)
    code, found = dequant(model, copy)
    assert code == 1
    (wrong,) = (said for status, said in found if status == "diverged")
    assert wrong.startswith(f"{tensor} (Q4_1): 2 weights differ; row 5, column ")
