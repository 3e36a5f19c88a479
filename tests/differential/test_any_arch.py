"""llama.cpp names the tensors of every architecture, and loads the models made with these names."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.check.check import Plan
from lockstep.harness.cli import app
from lockstep.harness.context import further_runs
from lockstep.harness.context.runner import Runner
from lockstep.harness.known import entries
from lockstep.harness.known.runs import excused_if_known
from lockstep.harness.records import EXACT, Answered, Rejected, Request, Verdict
from lockstep.harness.report.jsonl import read_report
from lockstep.harness.shadow.models import make_variant, make_variants, open_for_variants
from lockstep.harness.synth.any_arch import Variant, metadata_bytes, variant_named, variants
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.vocabularies import vocabulary_keys
from tests.differential.conftest import Checked
from tests.harness.synth.test_any_arch import TENSORS
from tests.recorded import variant_of


def test_llama_cpp_names_the_tensors_of_every_variant() -> None:
    with open_for_variants() as session:
        for variant in variants().values():
            outcome = session.ask("name_tensors", metadata_bytes(variant))
            assert isinstance(outcome, Answered), (variant.name, outcome)
            names = [tensor.name for tensor in outcome.value]
            assert len(set(names)) == len(names) > len(TENSORS)
            assert not variant.moe or any("_exps" in name for name in names), variant.name


@pytest.mark.parametrize(
    ("name", "quant"),
    [("mamba", "F32"), ("qwen3", "Q8_0"), ("deepseek4", "F32"), ("gemma3", "F16")],
)
def test_every_variant_runs(name: str, quant: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    variant_of(name, path, quant=quant)
    with Runner().open("llama.cpp", path, EXACT) as engine:
        outcome = engine.ask("evaluate", Request(batches=(Batch.of([1, 2, 3]), Batch.of([4], 3))))
    assert isinstance(outcome, Answered), outcome
    assert [logits.shape[0] for logits in outcome.value.logits] == [3, 1]
    assert all(abs(logits).max() > 0 for logits in outcome.value.logits)


@pytest.mark.parametrize("arch", ["bitnet", "cohere2", "command-r", "gemma", "gemma2", "plm"])
def test_text_of_a_headless_model_depends_on_earlier_tokens(arch: str, tmp_path: Path) -> None:
    """Embeddings were once as large as the outputs of layers, so each token repeated itself. An
    engine with wrong attention then wrote the same text."""
    path = tmp_path / "m.gguf"
    variant_of(arch, path)
    prompts = [[(37 * k + 11 * j + 5) % 120 for j in range(12)] for k in range(12)]
    with Runner().open("llama.cpp", path, EXACT) as engine:
        asked = [[engine.ask("greedy", ids, 8) for ids in (p, p[-1:])] for p in prompts]
    texts = [[outcome.value for outcome in pair if isinstance(outcome, Answered)] for pair in asked]
    assert all(whole != behind_last for whole, behind_last in texts)


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        ("qwen3", "gpt2"),
        ("gemma3", "llama"),
        ("phi3", "llama"),
        ("bert", "bert"),
        ("t5", "t5"),
        ("mamba", "gpt2"),
    ],
)
def test_synth_sets_sizes_and_a_usual_vocabulary(arch: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    sizes = ("--width", "256", "--layers", "3", "--heads", "4", "--vocabulary", "400")
    with pytest.raises(SystemExit) as end:
        app(["synth", "--arch", arch, "-o", str(path), *sizes, "--quant", "Q4_K"])
    assert not end.value.code
    file = GgufFile.open(path)
    try:
        keys = {name: field.data for name, field in file.metadata.items()}
        assert keys[f"{arch}.block_count"] == 3
        assert keys["tokenizer.ggml.model"] == kind
        assert len(keys["tokenizer.ggml.tokens"]) == 400
        embeddings = file.tensors["token_embd.weight"]
        assert (embeddings.shape, embeddings.type.name) == ((400, 256), "Q4_K")
    finally:
        file.close()
    with Runner().open("llama.cpp", path, EXACT) as engine:
        assert isinstance(engine.ask("tokenize", [b"to be"]), Answered)


@pytest.mark.parametrize("entry", entries("load"), ids=lambda entry: str(entry["id"]))
def test_known_refusal_persists(entry: dict[str, Any], tmp_path: Path) -> None:
    """The same file is loaded if it has the token that llama.cpp looks for."""
    said = []
    for last in ("", entry["token"]):
        path = tmp_path / f"{bool(last)}.gguf"
        keys = vocabulary_keys(entry["vocabulary"], 400, 0, last=last)
        named = {"general.architecture": ("STR", "llama"), "general.name": ("STR", entry["name"])}
        write_gguf(path, {**named, **keys}, ())
        with Runner().open("llama.cpp", path, EXACT) as engine:
            said.append(engine.ask("tokenize", [b"to be"]))
    refused, loaded = said
    assert entry["says"] in str(refused)
    assert not isinstance(refused, Answered)
    assert isinstance(loaded, Answered)


def test_the_tensors_of_a_large_model_are_named_and_take_no_memory() -> None:
    """The model in F32 exceeds the memory limit of other questions, and the memory of most
    machines."""
    sizes = {"n_layer": 8, "n_embd": 2048, "n_head": 16, "n_head_kv": 4, "n_ff": 1024}
    sizes |= {"n_expert": 64, "n_expert_used": 8}
    large = replace(variant_named("qwen3moe"), sizes=tuple(sizes.items()))
    with open_for_variants() as session:
        outcome = session.ask("name_tensors", metadata_bytes(large))
        assert isinstance(outcome, Answered), outcome
        assert sum(tensor.n_bytes for tensor in outcome.value) > 8 << 30
        peak = Path(f"/proc/{session.pid}/status").read_text()
    assert int(peak.partition("VmHWM:")[2].split()[0]) < 1 << 20  # number of KiB


def test_refused_metadata_is_reported_as_a_refusal_by_llama_cpp(tmp_path: Path) -> None:
    with open_for_variants() as session:
        bad = session.ask("name_tensors", b"no file at all")
        assert isinstance(bad, Rejected)
        assert "GGUF" in bad.message
        with pytest.raises(EngineError, match="gptj"):
            make_variant(Variant(arch="gptj", moe=False), tmp_path / "x.gguf", session=session)


def test_check_makes_a_model_of_an_architecture_and_runs_every_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        app(["check", "--arch", "qwen3moe", "--tokens", "4", "--steps", "2", "--json"])
    said = json.loads(capfd.readouterr().out)
    assert not end.value.code
    (_, *rows, _) = read_report(Path(said["report"]))
    assert {row["case"] for row in rows} == {"synth:qwen3moe"}
    ends = {row["suite"]: row["status"] for row in rows}
    assert set(ends.values()) <= {"agreed", "excused", "not-applicable"}
    assert {"metadata", "dequant", "logits", "decode", "shadow"} <= {
        suite for suite, status in ends.items() if status == "agreed"
    }


def test_chameleon_suppresses_image_tokens_only_in_the_first_row(tmp_path: Path) -> None:
    (path,) = make_variants(["chameleon"], tmp_path)
    prompt = [50, 5, 82, 2]
    with Runner().open("llama.cpp", path, EXACT) as engine:
        text = engine.ask("greedy", prompt, 1)
        run = engine.ask("evaluate", Request(batches=(Batch.of(prompt),)))
    assert isinstance(text, Answered)
    assert isinstance(run, Answered)
    image = run.value.logits[0][:, 4:8196]
    assert (image < -1e38).sum(axis=1).tolist() == [8192, 0, 0, 0]
    assert 4 <= run.value.logits[0][-1].argmax() < 8196 <= text.value[0]
    detail = {"at_fault": "oracle", "step": 0}
    wrong = Verdict(suite="decode", case="c", status="diverged", summary="", detail=detail)
    assert excused_if_known(wrong, "chameleon", "llama.cpp").status == "excused"
    chosen = {"at_fault": "both", "expected": 9000, "actual": 9000}
    both = replace(wrong, detail={**detail, **chosen})
    assert excused_if_known(both, "chameleon", "llama.cpp").status == "excused"
    others = replace(wrong, detail={**detail, **chosen, "actual": 9001})
    assert excused_if_known(others, "chameleon", "llama.cpp") is others


def test_cogvlm_returns_logits_of_the_first_token_twice(
    tmp_path: Path,
) -> None:
    (path,) = make_variants(["cogvlm"], tmp_path)
    prompt = [50, 5, 82, 2]
    with Runner().open("llama.cpp", path, EXACT) as engine:
        text = engine.ask("greedy", prompt, 1)
        run = engine.ask("evaluate", Request(batches=(Batch.of(prompt),)))
    assert isinstance(text, Answered)
    assert isinstance(run, Answered)
    first, *_, last = run.value.logits[0].argmax(axis=1).tolist()
    assert text.value == [first] != [last]
    detail = {"at_fault": "oracle", "step": 0}
    wrong = Verdict(suite="decode", case="c", status="diverged", summary="", detail=detail)
    assert excused_if_known(wrong, "cogvlm", "llama.cpp").status == "excused"
    some = replace(wrong, suite="logits", detail={**detail, "asked": "with two sequences"})
    some.detail.pop("step")
    assert excused_if_known(some, "cogvlm", "llama.cpp").status == "excused"
    # rows of all tokens are returned correctly
    every = replace(some, detail={"at_fault": "oracle"})
    assert excused_if_known(every, "cogvlm", "llama.cpp") is every
    assert excused_if_known(wrong, "qwen3", "llama.cpp") is wrong
    assert excused_if_known(wrong, "cogvlm", "llama.cpp@0.3.8") is wrong
    both = replace(wrong, detail={**detail, "at_fault": "both"})
    assert excused_if_known(both, "cogvlm", "llama.cpp") is both


@pytest.mark.parametrize(("suite", "name"), [("decode", "plamo"), ("embeddings", "jina-bert-v2")])
def test_replay_and_oracle_use_different_workers(
    suite: str, name: str, tmp_path: Path, plan_for: Callable[..., Plan], checked: Checked
) -> None:
    """The replay uses llama.cpp's graph of a model that has not been recorded before."""
    path = tmp_path / "m.gguf"
    variant_of(name, path)
    for seed in range(2):
        found = checked(plan_for(path, engine="replay", suites=(suite,), seed=seed))
        assert {v.status for v in found} <= {"agreed", "excused"}, [v.summary for v in found]


@pytest.mark.parametrize("arch", ["chameleon", "cogvlm", "dream", "llada"])
@pytest.mark.parametrize("rows", [1 << 20, 1], ids=["all", "some"])
def test_honest_engine_agrees_for_any_split_of_batches(
    arch: str,
    rows: int,
    plan_for: Callable[..., Plan],
    checked: Checked,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """An earlier version joined separate batches, and batches with a changed first row, in one run.
    Lockstep then accused both engines, even if only some logits were requested, as with a large
    vocabulary."""
    monkeypatch.setattr(further_runs, "ROWS", rows)
    (path,) = make_variants([arch], tmp_path)
    found = checked(plan_for(path, engine="replay", suites=("logits", "decode", "trace")))
    assert {v.status for v in found} <= {"agreed", "excused"}, [v.summary for v in found]


@pytest.mark.parametrize("arch", ["qwen2", "qwen3moe", "phi3", "gemma2"])
def test_heads_share_kv_heads_visibly(
    arch: str, plan_for: Callable[..., Plan], checked: Checked, tmp_path: Path
) -> None:
    """A model with as many KV heads as heads would hide the fault, because no KV head is shared."""
    (path,) = make_variants([arch], tmp_path)
    plan = plan_for(path, suites=("logits",))
    assert {v.status for v in checked(plan)} == {"agreed"}
    found = checked(replace(plan, engine="mutant:kv-head-modulo"))
    assert "diverged" in {verdict.status for verdict in found}
