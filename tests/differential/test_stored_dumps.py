"""Dumps in half precision: an honest engine is not accused, and a wrong engine is still found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import Verdict
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.harness.dumps.test_dumps import TENSORS, changed, trace_of
from tests.harness.dumps.test_node_maps import checked
from tests.stored_dumps import as_bf16, write_bf16

Tensors = dict[str, Any]
EMBEDDINGS = "token_embd.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin_model("f32", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace_of(model, tmp_path_factory.mktemp("dump"))


def save_f16(path: Path, tensors: Tensors) -> None:
    with np.errstate(over="ignore"):
        save_file({key: value.astype(np.float16) for key, value in tensors.items()}, path)


def save_f16_as_f32(path: Path, tensors: Tensors) -> None:
    """Save F16 values as float32, as `tensor.float()` does."""
    save_file({k: v.astype(np.float16).astype(np.float32) for k, v in tensors.items()}, path)


def save_bf16_as_f32(path: Path, tensors: Tensors) -> None:
    save_file({key: as_bf16(value) for key, value in tensors.items()}, path)


def save_one_as_it_is(path: Path, tensors: Tensors) -> None:
    kept = {key: as_bf16(value) for key, value in tensors.items()}
    save_file(kept | {"step0/attn_norm-0": tensors["step0/attn_norm-0"]}, path)


def cut_bf16(path: Path, tensors: Tensors) -> None:
    write_bf16(path, tensors, cut=True)


def verdicts(
    model: Path,
    written: Path,
    folder: Path,
    save: Callable[[Path, Tensors], None],
    wrong: Callable[[Tensors], None] = lambda _: None,
    only: tuple[str, ...] = (),
) -> list[Verdict]:
    changed(written, folder, lambda *_: None)
    tensors = load_file(written / TENSORS)
    wrong(tensors)
    kept = {k: v for k, v in tensors.items() if not only or any(name in k for name in only)}
    save(folder / TENSORS, kept)
    return checked(model, f"dump:{folder}", "logits", "trace", oracle="llama.cpp")


HALVES = [save_f16, write_bf16, save_f16_as_f32, save_bf16_as_f32]


@pytest.mark.parametrize("save", HALVES)
@pytest.mark.parametrize("only", [(), ("l_out", "result_output"), ("result_output",)])
def test_honest_run_stored_in_half_precision_agrees(
    save: Callable[[Path, Tensors], None],
    only: tuple[str, ...],
    model: Path,
    written: Path,
    tmp_path: Path,
) -> None:
    found = verdicts(model, written, tmp_path / "d", save, only=only)
    assert exit_code(found) == 0, found
    agreed = {v.suite for v in found if v.status == "agreed"}
    assert agreed == ({"logits"} if only == ("result_output",) else {"logits", "trace"})


def test_truncated_numbers_are_a_difference(model: Path, written: Path, tmp_path: Path) -> None:
    found = verdicts(model, written, tmp_path / "d", cut_bf16)
    assert {v.suite for v in found if v.status == "diverged"} == {"logits", "trace"}


def rows_one_token_late(tensors: Tensors) -> None:
    tensors["step0/ffn_norm-1"] = np.roll(tensors["step0/ffn_norm-1"], 1, axis=0)


def layer_0_again(tensors: Tensors) -> None:
    tensors["step0/l_out-1"] = tensors["step0/l_out-0"]


def heads_backwards(tensors: Tensors) -> None:
    tensors["step0/Qcur_rope-1"] = tensors["step0/Qcur_rope-1"][:, ::-1].copy()


def test_dump_with_unrounded_numbers_is_not_half_precision(
    model: Path, written: Path, tmp_path: Path
) -> None:
    found = verdicts(model, written, tmp_path / "d", save_one_as_it_is)
    assert {v.suite for v in found if v.status == "diverged"} == {"logits", "trace"}


@pytest.mark.parametrize("save", HALVES)
@pytest.mark.parametrize(
    ("wrong", "site"),
    [
        (rows_one_token_late, "ffn_norm"),
        (layer_0_again, "l_out"),
        (heads_backwards, "Qcur_rope"),
    ],
)
def test_wrong_run_in_half_precision_is_located(
    save: Callable[[Path, Tensors], None],
    wrong: Callable[[Tensors], None],
    site: str,
    model: Path,
    written: Path,
    tmp_path: Path,
) -> None:
    found = verdicts(model, written, tmp_path / "d", save, wrong)
    first = next(v for v in found if v.suite == "trace" and v.status == "diverged")
    assert (first.detail["site"], first.detail["layer"]) == (site, 1)
    assert "stored in" in first.detail["reason"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose residuals exceed half precision, as in some real models."""
    folder = tmp_path_factory.mktemp("large")
    with GgufFile.open(builtin_model("f32", folder)) as file:
        rows = []
        for t in file.tensors.values():
            values = file.raw(t.name).view(np.float32) * (1e5 if t.name == EMBEDDINGS else 1.0)
            rows.append((t.name, t.ne, "F32", values.astype(np.float32).tobytes()))
        write_gguf(folder / "large.gguf", dict(file.metadata), rows)
    return folder / "large.gguf"


def test_numbers_beyond_half_precision_are_not_compared(large: Path, tmp_path: Path) -> None:
    dumped = trace_of(large, tmp_path / "dump")
    found = verdicts(large, dumped, tmp_path / "d", save_f16)
    assert {(v.suite, v.status) for v in found if v.status != "not-applicable"} == {
        *(("logits", "agreed"), ("trace", "agreed")),
        ("trace", "not-compared"),
    }
    assert any("infinite because they were stored in F16" in v.summary for v in found)


def test_engine_with_its_own_infinity_is_found_downstream(large: Path, tmp_path: Path) -> None:
    def overflows(tensors: Tensors) -> None:
        tensors["step0/ffn_swiglu-1"][:] = np.inf
        tensors["step0/ffn_out-1"][:] = np.nan

    dumped = trace_of(large, tmp_path / "dump")
    found = verdicts(large, dumped, tmp_path / "d", save_f16, overflows)
    assert "ffn_out" in {v.detail["site"] for v in found if v.status == "diverged"}
