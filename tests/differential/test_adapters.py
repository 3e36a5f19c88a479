"""LoRA files and control vectors: llama.cpp compared with our graphs, replay and wrong engines."""

import ctypes
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.adapters.lora import ALPHA, KINDS, A, B
from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.harness.adapters import adapter_class
from lockstep.harness.adapters.llama_cpp.lib import library
from lockstep.harness.adapters.llama_cpp.model import LlamaContext, LlamaModel
from lockstep.harness.check.adapters import check_adapters, check_used
from lockstep.harness.check.check import Opened, Plan, open_plan, run_suites
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.honest.adapters import HONEST_ADAPTERS
from lockstep.harness.known import entries
from lockstep.harness.mutants.adapters import WRONG_ADAPTERS
from lockstep.harness.records import (
    CONTROL_VECTOR,
    EXACT,
    LORA,
    PRESETS,
    AdapterFile,
    Answered,
    Crashed,
    Request,
    Settings,
    Verdict,
)
from lockstep.harness.runs.run import check_one
from lockstep.harness.runs.second_look import FORM, look_again
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.adapters import LoraRecipe, write_control_vector, write_lora
from lockstep.harness.synth.any_arch import variant_named
from lockstep.harness.synth.gguf_writer import Tensor, write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.places import EXAMPLES

WRONG_FIRST = ("lora-factors-swapped", "lora-down-plain", "lora-head-plain", "vector-layer-early")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    path = folder / "model.gguf"
    write_llama(LlamaRecipe(n_layer=3, n_embd=64, n_head=4, n_head_kv=2), path)
    return path


def adapters_for(model: Path) -> tuple[AdapterFile, ...]:
    """Return two LoRA files with different ranks and scales, and a control vector."""
    files = [model.with_suffix(f".{name}.gguf") for name in ("a", "b", "vector")]
    if not files[0].exists():
        write_lora(LoraRecipe(seed=1), model, files[0])
        write_lora(LoraRecipe(seed=2, rank=2, alpha=3.0, quant="F16"), model, files[1])
        write_control_vector(3, model, files[2])
    return (
        AdapterFile(kind=LORA, path=str(files[0]), scale=-0.3),
        AdapterFile(kind=LORA, path=str(files[1]), scale=0.7),
        AdapterFile(kind=CONTROL_VECTOR, path=str(files[2]), scale=0.25),
    )


def plan_for(
    model: Path,
    engine: str,
    *suites: str,
    preset: Settings = EXACT,
    adapters: tuple[AdapterFile, ...] | None = None,
) -> Plan:
    given = adapters_for(model) if adapters is None else adapters
    return Plan(
        case=model.stem,
        model=model,
        subject_model=model,
        engine=engine,
        settings=replace(preset, adapters=given),
        suites=suites,
        n_tokens=6,
        n_steps=2,
    )


def opened_for(plan: Plan) -> Opened:
    return open_plan(plan, lambda _: None)


def verdicts_of(plan: Plan) -> list[Verdict]:
    with closing(opened_for(plan)) as opened:
        found = run_suites(opened.context, plan.suites)
        return list(look_again(plan, found, opened_for, lambda _: None))


def statuses(verdicts: Sequence[Verdict]) -> set[str]:
    return {verdict.status for verdict in verdicts}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("engine", ["reference", "fast", "replay"])
def test_engine_that_adds_adapters_agrees(model: Path, engine: str, preset: str) -> None:
    plan = plan_for(model, engine, "logits", "decode", "trace", preset=PRESETS[preset])
    assert statuses(verdicts_of(plan)) == {"agreed"}


@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss", "lfm2", "gemma2"])
def test_other_architecture_agrees(folder: Path, arch: str) -> None:
    path = folder / f"{arch}.gguf"
    with open_for_variants() as session:
        make_variant(variant_named(arch), path, session=session)
    assert statuses(verdicts_of(plan_for(path, "reference", "logits"))) == {"agreed"}


@pytest.mark.parametrize("name", WRONG_ADAPTERS)
def test_wrong_adapter_is_found_by_logits(model: Path, name: str) -> None:
    assert adapter_class(name) is WRONG_ADAPTERS[name]
    assert "diverged" in statuses(verdicts_of(plan_for(model, name, "logits")))


@pytest.mark.parametrize("name", WRONG_FIRST)
def test_wrong_adapter_is_located_at_its_op(model: Path, name: str) -> None:
    cls = WRONG_ADAPTERS[f"mutant:{name}"]
    found = verdicts_of(plan_for(model, cls.name, "trace"))
    first = next(verdict for verdict in found if verdict.status == "diverged")
    assert first.detail["site"] == cls.site


@pytest.mark.parametrize("name", HONEST_ADAPTERS)
def test_honest_adapter_is_not_accused(model: Path, name: str) -> None:
    assert statuses(verdicts_of(plan_for(model, name, "logits", "trace"))) == {"agreed"}


def test_weights_merged_in_f16_agree_with_llama_cpp(model: Path) -> None:
    (verdict,) = verdicts_of(plan_for(model, "honest:lora-merged-f16", "logits"))
    assert verdict.detail[FORM] == "merged"


def test_pairs_that_llama_cpp_ignores_are_named_and_nothing_is_compared(folder: Path) -> None:
    path = folder / "deepseek2.gguf"
    with open_for_variants() as session:
        make_variant(variant_named("deepseek2"), path, session=session)
    with pytest.raises(NoAnswer) as refused:
        opened_for(plan_for(path, "reference", "logits"))
    assert refused.value.status == "not-compared"
    unused = refused.value.detail["unused_pairs"]
    assert "output.weight" in unused
    assert "blk.0.attn_q_a.weight" in unused
    assert "blk.0.attn_output.weight" not in unused


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-60])
def test_scale_of_zero_is_refused(model: Path, scale: float) -> None:
    faint = tuple(replace(each, scale=scale) for each in adapters_for(model))
    with pytest.raises(InvalidModel, match=r"gguf: the scale is .*, so it has no effect"):
        check_adapters(replace(EXACT, adapters=faint), model)


@pytest.mark.parametrize("kind", [LORA, CONTROL_VECTOR])
def test_adapter_without_effect_is_not_compared(model: Path, kind: str) -> None:
    given = adapters_for(model)
    faint = tuple(replace(each, scale=1e-9) if each.kind == kind else each for each in given)
    plan = plan_for(model, "reference", "logits", adapters=faint)
    with pytest.raises(NoAnswer, match="an engine that ignores the file would agree") as refused:
        check_one(plan, lambda _: None)
    assert refused.value.status == "not-compared"


def case_files(entry: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write the model and the LoRA file of a known divergence."""
    model, lora = folder / "model.gguf", folder / "lora.gguf"
    if isinstance(entry["model"], str):
        with open_for_variants() as session:
            make_variant(variant_named(entry["model"]), model, session=session)
    else:
        write_llama(LlamaRecipe(**entry["model"]), model)
    arch = entry["model"] if isinstance(entry["model"], str) else "llama"
    keys: dict[str, Any] = {"general.architecture": ("STR", arch), ALPHA: ("F32", 8.0)}
    keys |= {key: ("STR", value) for key, value in KINDS.items()}
    keys |= {key: tuple(value) for key, value in entry["keys"].items()}
    tensors: list[Tensor] = []
    for name, shapes in entry["pairs"].items():
        for end, shape in zip((A, B), shapes, strict=True):
            tensors.append((name + end, shape[::-1], "F32", np.full(shape, 0.1, np.float32)))
    write_gguf(lora, keys, tensors)
    return model, lora


@pytest.mark.parametrize("entry", entries("lora"), ids=lambda entry: entry["id"])
def test_known_divergence_of_a_lora_file_is_still_true(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    model, lora = case_files(entry, tmp_path)
    settings = replace(EXACT, adapters=(AdapterFile(kind=LORA, path=str(lora)),))
    with Runner().open("llama.cpp", model, settings) as session:
        outcome = session.ask("evaluate", Request(batches=(Batch.of([1, 5, 9]),)))
        if entry["symptom"] == "unused":
            with pytest.raises(NoAnswer):
                check_used(session, settings, model)
        elif entry["symptom"] == "nan":
            assert isinstance(outcome, Answered)
            assert np.isnan(outcome.value.logits[0]).all()
        else:
            assert isinstance(outcome, Crashed)
    with nullcontext() if entry["legal"] else pytest.raises(EngineError):
        check_adapters(settings, model)


def logits_with(model: Path, calls: Sequence[int]) -> np.ndarray:
    """Return logits after setting control vectors that have these numbers of layers, one after the
    other."""
    loaded = LlamaModel(library(), model, EXACT, vocab_only=False)
    context = LlamaContext(loaded, EXACT)
    width = loaded.lib.llama.llama_model_n_embd(loaded.pointer)
    for n in calls:
        data = np.full((n, width), 1.0 / n, np.float32)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        given = (context.pointer, pointer, data.size, width, 1, loaded.n_layer)
        assert loaded.lib.llama.llama_set_adapter_cvec(*given) == 0
    logits = context.decode(Batch.of([1, 5, 9]))
    context.close()
    loaded.close()
    return logits


@pytest.mark.parametrize("entry", entries("vector"), ids=lambda entry: entry["id"])
def test_shorter_control_vector_leaves_later_layers_unchanged(
    entry: dict[str, Any], model: Path
) -> None:
    stale = logits_with(model, entry["calls"])
    assert not np.array_equal(stale, logits_with(model, entry["calls"][-1:]))


def test_program_without_adapters_is_not_compared(model: Path) -> None:
    engine = shlex.join([sys.executable, str(EXAMPLES / "engine.py")])
    with pytest.raises(NoAnswer) as refused:
        opened_for(plan_for(model, engine, "logits"))
    assert refused.value.status == "not-compared"


def test_program_that_only_claims_to_add_adapters_is_found(model: Path, tmp_path: Path) -> None:
    text = (EXAMPLES / "engine.py").read_text()
    liar = tmp_path / "liar.py"
    liar.write_text(
        text.replace('"logits", "trace"', '"logits", "lora", "control_vector", "trace"')
    )
    engine = shlex.join([sys.executable, str(liar)])
    assert "diverged" in statuses(verdicts_of(plan_for(model, engine, "logits")))
