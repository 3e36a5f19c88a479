"""Checkpoints run by transformers, compared with their GGUF files, if the engine has been added."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.foreign.building import is_added
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.known.originals import known_of_originals
from lockstep.harness.originals.findings import DifferenceKind, PartResult, SkipReason
from lockstep.harness.runs.original_run import ENGINE, RunOptions, compare_results
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import Conversion, convert

KNOWN = {"bert": "bert-gelu-by-tanh", "phi3": "longrope-factors-by-size-of-cache"}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
UNREAD = {
    "mistral-without-windows": ("llama", MISTRAL | {"sliding_window": 4}),
    "phi3-windows-ignored": ("phi3", {"sliding_window": 4, "rope_scaling": None}),
    "gemma-scale-of-queries-by-head": ("gemma2", {"query_pre_attn_scalar": 16}),
    "qwen3moe-weights-of-experts-normed": ("qwen3moe", {"norm_topk_prob": False}),
}


@pytest.fixture(autouse=True)
def need_environment() -> None:
    if not is_added(ENGINES[ENGINE]):
        pytest.skip("originals is not added (lockstep engine add originals): nothing was run")


def run(folder: Path, conversion: Conversion) -> PartResult:
    model = conversion.write(folder / "made.gguf")
    return compare_results(folder, model, RunOptions(n_tokens=8), lambda _: None)


@pytest.mark.parametrize("arch", ck.CONFIGS)
def test_right_conversion_gives_the_outputs_of_its_original(arch: str, tmp_path: Path) -> None:
    found = run(tmp_path, convert(arch, ck.write_checkpoint(tmp_path, arch)))
    assert (found.differences, found.skipped) == ([], [])
    assert found.compared > 50
    assert {each.detail["known"] for each in found.known} == {*filter(None, [KNOWN.get(arch)])}


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_file_of_rounded_weights_agrees_with_its_original(kind: str, tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "qwen2", "F32")
    found = run(tmp_path, convert("qwen2", values, kind))
    assert (found.differences, found.skipped) == ([], [])


def scale_row(values: Any) -> Any:
    return np.concatenate([values[:1] * np.float32(1.01), values[1:]])


WRONG: dict[str, tuple[Callable[[Conversion], None], str, int | None]] = {
    "row": (lambda m: m.change("blk.1.ffn_up.weight", scale_row), "ffn_up-1", 1),
    "rope": (lambda m: m.set("rope.freq_base", 10000.0), "kqv_out-0", 0),
    "eps": (lambda m: m.set("attention.layer_norm_rms_epsilon", 1e-3), "attn_norm-0", 0),
    "head": (lambda m: m.change("output.weight", scale_row), "result_output", None),
}


@pytest.mark.parametrize("name", WRONG)
def test_first_place_that_differs_is_named(name: str, tmp_path: Path) -> None:
    change, place, layer = WRONG[name]
    made = convert("llama", ck.write_checkpoint(tmp_path, "llama"))
    change(made)
    first = run(tmp_path, made).differences[0]
    assert (first.kind, first.place) == (DifferenceKind.computed, place)
    assert first.detail["layer"] == layer


def test_coarser_file_loses_more(tmp_path: Path) -> None:
    values, losses = ck.write_checkpoint(tmp_path, "llama"), []
    for kind in ("Q8_0", "Q4_0"):
        found = run(tmp_path, convert("llama", values, kind))
        assert [each.reason for each in found.skipped] == [SkipReason.quantised]
        assert found.loss is not None
        losses.append(found.loss)
    fine, coarse = losses
    assert 0 < fine.kl + fine.kl_error < coarse.kl - coarse.kl_error
    assert fine.same_top > coarse.same_top


def test_every_known_difference_is_tried() -> None:
    assert {each.id for each in known_of_originals()} == {*KNOWN.values(), *UNREAD}


@pytest.mark.parametrize("known", UNREAD)
def test_value_that_is_not_read_is_known_to_differ(
    known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch, changed = UNREAD[known]
    monkeypatch.setitem(ck.CONFIGS, arch, ck.CONFIGS[arch] | changed)
    found = run(tmp_path, convert(arch, ck.write_checkpoint(tmp_path, arch)))
    assert found.differences == []
    assert {each.detail["known"] for each in found.known} == {known}
    assert len(found.known) == ck.N_LAYER


def test_code_of_a_checkpoint_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    monkeypatch.setitem(ck.CONFIGS, "llama", ck.CONFIGS["llama"] | {"auto_map": own})
    values = ck.write_checkpoint(tmp_path, "llama")
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: pass\n")
    found = run(tmp_path, convert("llama", values))
    assert found.differences == []
    assert not mark.exists()
