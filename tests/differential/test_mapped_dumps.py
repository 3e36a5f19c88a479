"""Dumps with other engines' names, judged on llama.cpp's graph: a wrong map is found."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.exit_codes import exit_code
from lockstep.harness.runs.run import builtin_model
from tests.harness.dumps.test_dumps import trace_of
from tests.harness.dumps.test_node_maps import as_transformers, checked, renamed

LLAMA_CPP = {"oracle": "llama.cpp"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin_model("f32", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace_of(model, tmp_path_factory.mktemp("dump"))


def test_names_and_rows_of_transformers_are_translated(
    model: Path, written: Path, tmp_path: Path
) -> None:
    folder = renamed(written, tmp_path / "d", as_transformers)
    found = checked(model, f"dump:{folder}#map=transformers", "logits", "trace", **LLAMA_CPP)
    assert exit_code(found) == 0, found
    assert {v.suite for v in found if v.status == "agreed"} == {"logits", "trace"}


def test_file_row_order_is_a_difference_at_q_and_k(
    model: Path, written: Path, tmp_path: Path
) -> None:
    """Transformers has another order of rows than the file. Rows are compared, and no other site is
    accused."""
    folder = renamed(written, tmp_path / "d", lambda t: as_transformers(t, permuted=False))
    found = checked(model, f"dump:{folder}#map=transformers", "trace", **LLAMA_CPP)
    wrong = {v.detail["site"] for v in found if v.status == "diverged"}
    assert {"Qcur", "Kcur"} & wrong
    assert "ffn_out" not in wrong


def test_ops_distinguish_equal_names_of_the_eval_callback(
    model: Path, written: Path, tmp_path: Path
) -> None:
    def as_callback(tensors: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for key, value in tensors.items():
            step, _, node = key.partition("/")
            for name, op in (("Qcur", "MUL_MAT"), ("Kcur", "MUL_MAT"), ("Vcur", "MUL_MAT")):
                node = f"{node} {op}" if node.startswith(f"{name}-") else node
            node = node.replace("Qcur_rope-0", "Qcur-0 ROPE").replace("embd", "inp_embd")
            if not node.startswith(("kq", "k_cache", "v_cache")) or node.startswith("kqv_out"):
                found[f"{step}/{node}"] = value
        return found

    folder = renamed(written, tmp_path / "d", as_callback)
    found = checked(model, f"dump:{folder}#map=llama.cpp", "trace", "logits", **LLAMA_CPP)
    assert exit_code(found) == 0, found
