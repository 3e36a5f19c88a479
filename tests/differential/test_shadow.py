"""llama.cpp's own graphs judged op by op; injected wrong results are located."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import MEANINGS
from lockstep.harness.adapters.llama_cpp.adapter import LlamaCpp
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import (
    DEFAULT,
    EXACT,
    Answered,
    Captured,
    Fault,
    Nodes,
    Request,
    Settings,
    Unanswerable,
)
from lockstep.harness.report.jsonl import read_report
from lockstep.harness.runs.run import Listener
from lockstep.harness.runs.shadow import ShadowPlan, run_shadow, settings_for, with_trials
from lockstep.harness.shadow.batches import Work, batches_of
from lockstep.harness.shadow.fault_verdicts import ALL, count_faults
from lockstep.harness.shadow.faults import KINDS, FaultPlace
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.nodes import capture, nodes_of
from lockstep.harness.synth.any_arch import variant_named

# together, these have nearly every op; `shadow --arch all` runs all variants
SLICE = ("deepseek4", "qwen4exp", "gemma3n", "gpt-oss", "mamba2", "rwkv6", "t5", "jina-bert-v2")


def model_of(name: str, folder: Path, namer: Session, quant: str = "F32") -> Path:
    path = folder / f"{name}.gguf"
    make_variant(variant_named(name), path, session=namer, quant=quant)
    return path


def shadow(
    path: Path, settings: Settings, work: Work | None = None
) -> tuple[ShadowJudge, Captured]:
    work = work or Work(tokens=9)
    with (
        GgufFile.open(path) as file,
        Runner().open("llama.cpp", path, settings) as session,
    ):
        info = session.ask("describe")
        assert isinstance(info, Answered)
        lanes, generic = lanes_of(info.value.build), info.value.generic
        build = Build(lanes=lanes, n_threads=settings.n_threads, generic=generic)
        judge = ShadowJudge(file, build)
        outcome = capture(session, judge, batches_of(work, 0, file))
    assert isinstance(outcome, Answered), outcome
    return judge, outcome.value


@pytest.mark.parametrize("name", SLICE)
def test_sources_explain_every_node_of_a_variant(name: str, tmp_path: Path, namer: Session) -> None:
    judge, captured = shadow(model_of(name, tmp_path, namer), EXACT)
    assert judge.findings == []
    tallies = [tally for _, tally in judge.by_op()]
    assert sum(t.compared for t in tallies) == sum(t.nodes for t in tallies) == captured.nodes > 50
    assert captured.views > 0
    assert max(t.worst for t in tallies) > 0.1  # limits far above all errors would prove little


@pytest.mark.parametrize("name", ["gemma3", "jamba"])
def test_several_sequences_in_several_ubatches_are_judged(
    name: str, tmp_path: Path, namer: Session
) -> None:
    work = Work(tokens=5, sequences=3)
    settings = settings_for(work, EXACT, ubatch=4)
    path = model_of(name, tmp_path, namer)
    judge, captured = shadow(path, settings, work)
    assert judge.findings == []
    assert sum(t.compared for _, t in judge.by_op()) == captured.nodes
    seen: set[tuple[int, int]] = set()
    with GgufFile.open(path) as file, Runner().open("llama.cpp", path, settings) as session:
        batches = batches_of(work, 0, file)
        capture(session, lambda node: seen.add((node.step, node.ubatch)), batches)
    assert {step for step, _ in seen} == {0, 1, 2}
    assert max(ubatch for step, ubatch in seen if step == 0) >= 3


def test_encoder_gets_one_ubatch_only(tmp_path: Path, namer: Session) -> None:
    """llama.cpp would abort, so the question is refused, and is not reported as a crash."""
    path = model_of("jina-bert-v2", tmp_path, namer)
    with Runner().open("llama.cpp", path, replace(EXACT, n_ubatch=2)) as session:
        outcome = capture(session, lambda _: None, [Batch.of([1, 2, 3])])
    assert isinstance(outcome, Unanswerable)
    assert "in one ubatch" in outcome.message


@pytest.mark.parametrize("quant", ["F32", "Q8_0", "Q4_K"])
def test_users_settings_are_judged_as_well(quant: str, tmp_path: Path, namer: Session) -> None:
    judge, captured = shadow(model_of("qwen3", tmp_path, namer, quant), DEFAULT)
    assert judge.findings == []
    ops = dict(judge.by_op())
    assert ops["FLASH_ATTN_EXT"].compared > 0
    assert sum(t.compared for t in ops.values()) == captured.nodes


@pytest.mark.parametrize(
    ("name", "keys", "values"), [("llama", "Q8_0", "Q4_0"), ("gpt-oss", "Q5_1", "Q5_1")]
)
def test_quantised_caches_are_judged(
    name: str, keys: str, values: str, tmp_path: Path, namer: Session
) -> None:
    settings = replace(DEFAULT, type_k=keys, type_v=values)
    judge, captured = shadow(model_of(name, tmp_path, namer), settings)
    assert judge.findings == []
    ops = dict(judge.by_op())
    assert sum(t.compared for t in ops.values()) == captured.nodes
    assert ops["FLASH_ATTN_EXT"].compared > 0 < ops["SET_ROWS"].compared


def test_settings_that_do_not_fit_are_refused_without_divergence(tmp_path: Path) -> None:
    settings = replace(EXACT, type_v="Q8_0")
    plan = ShadowPlan(case="synth:llama", model=None, variant="llama", settings=settings)
    (verdict,) = run_shadow([plan], tmp_path, ["lockstep"], None, Listener()).verdicts
    assert verdict.status == "not-compared"
    assert "quantized V cache requires flash_attn" in verdict.summary


def test_model_with_only_nan_does_not_conform(tmp_path: Path, namer: Session) -> None:
    """The run also contains a conforming model."""
    good = model_of("llama", tmp_path, namer)
    bad = tmp_path / "nan.gguf"
    raw = bytearray(good.read_bytes())
    with GgufFile.open(good) as file:
        for name in ("token_embd.weight", "output.weight"):
            start = file.data_offset + file.tensors[name].offset
            raw[start : start + file.tensors[name].n_bytes] = b"\xff" * file.tensors[name].n_bytes
    bad.write_bytes(raw)
    work = Work(tokens=5, batches=0)
    plans = [ShadowPlan(case=p.name, model=p, settings=EXACT, work=work) for p in (good, bad)]
    result = run_shadow(plans, tmp_path, ["lockstep", "shadow"], None, Listener())
    assert result.code == 3
    statuses = {v.detail["op"]: v.status for v in result.verdicts if v.case == bad.name}
    assert {statuses[op] for op in ("MUL_MAT", "RMS_NORM", "ROPE", "SWIGLU")} == {"not-compared"}
    assert {v.status for v in result.verdicts if v.case == good.name} == {"agreed"}
    (header, *_) = read_report(result.folder / "report.jsonl")
    assert [model["case"] for model in header["models"]] == [good.name, bad.name]


def test_slice_reaches_most_ops_with_a_definition(tmp_path: Path, namer: Session) -> None:
    seen: set[str] = set()
    path = model_of("deepseek4", tmp_path, namer)
    with Runner().open("llama.cpp", path, EXACT) as session:
        outcome = capture(session, lambda n: seen.add(n.op), [Batch.of([1, 2])])
    assert isinstance(outcome, Answered)
    assert seen <= MEANINGS.keys()
    assert {"TOP_K", "LIGHTNING_INDEXER", "DSV4_HC_COMB", "ROPE_BACK", "MUL_MAT_ID"} <= seen


@pytest.mark.parametrize(("name", "settings"), [("llama-moe", EXACT), ("llama", DEFAULT)])
def test_faults_are_found_only_at_their_node(name: str, settings: Settings, tmp_path: Path) -> None:
    plan = ShadowPlan(
        case=name, model=None, variant=name, settings=settings, work=Work(tokens=6), seed=3
    )
    plans = with_trials([plan], range(12))
    result = run_shadow(plans, tmp_path, ["lockstep", "shadow"], None, Listener())
    assert [v.summary for v in result.verdicts if v.status != "agreed"] == []
    counts = count_faults(result.verdicts)
    assert counts[ALL].injected == dict.fromkeys(KINDS, 3) == counts[ALL].found
    assert counts[ALL].located == 12
    assert len(counts) > 4


def test_in_place_node_shows_its_input(tmp_path: Path, namer: Session) -> None:
    nodes: list[Node] = []
    path = model_of("llama", tmp_path, namer)
    with Runner().open("llama.cpp", path, EXACT) as session:
        outcome = capture(session, nodes.append, [Batch.of([1, 2, 3])])
    assert isinstance(outcome, Answered)
    (embd,) = (n for n in nodes if n.name == "embd")
    assert embd.source(1).name == "inp_tokens"
    assert embd.source(1).value is not None
    assert embd.source(1).value.reshape(-1).tolist() == [1, 2, 3]
    assert (embd.source(0).weight, embd.source(0).value) == ("token_embd.weight", None)
    stored = next(n for n in nodes if n.op == "SET_ROWS")
    before = stored.source(2).value
    assert before is not None
    assert not before.any()  # the cache before the run
    assert stored.value.any()
    readers = [n for n in nodes for s in n.sources if s and s.producer == embd.index]
    assert {n.op for n in readers} >= {"RMS_NORM", "ADD"}


def test_buffers_of_any_size_show_the_same_values(
    tmp_path: Path, namer: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some buffers hold several nodes; others are smaller than a single node."""
    from lockstep.harness.adapters.llama_cpp import capture as _llama_cpp_capture

    path, batches = model_of("llama", tmp_path, namer), [Batch.of([1, 2, 3]), Batch.of([4], 3)]
    seen: list[list[tuple[str, bytes]]] = []
    pieces: list[int] = []
    for size, room in ((1 << 24, 1 << 12), (1 << 16, 1 << 12), (1 << 24, 30)):
        monkeypatch.setattr(_llama_cpp_capture, "SIZE", size)
        monkeypatch.setattr(_llama_cpp_capture, "ROOM", room)
        engine, here = LlamaCpp(path, EXACT), []
        pieces.append(0)

        def keep(piece: Nodes, here: list[Any] = here) -> None:
            pieces[-1] += 1
            for n in nodes_of(piece):
                reads = [s.value.tobytes() for s in n.sources if s and s.value is not None]
                here.append((n.name, n.step, n.index, n.value.tobytes(), *reads))

        captured = engine.capture(batches, None, keep)
        engine.close()
        assert captured.nodes == len(here)
        seen.append(here)
    assert seen[0] == seen[1] == seen[2]
    assert pieces[0] == 1 < min(pieces[1:])


@pytest.mark.parametrize("settings", [EXACT, DEFAULT], ids=lambda s: s.name)
def test_watching_changes_no_bit(settings: Settings, tmp_path: Path, namer: Session) -> None:
    """llama.cpp fuses ops that are not watched, so watching must not change the judged values."""
    nodes: list[Node] = []
    path, batches = model_of("gemma3n", tmp_path, namer), (Batch.of([1, 2, 3, 4]),)
    with Runner().open("llama.cpp", path, settings) as session:
        watched = capture(session, nodes.append, batches)
        alone = session.ask("evaluate", Request(batches=batches))
    assert isinstance(watched, Answered)
    assert isinstance(alone, Answered)
    assert nodes[-1].value.tobytes() == alone.value.logits[0].tobytes()


def test_unrequested_fault_is_not_injected(tmp_path: Path, namer: Session) -> None:
    path = model_of("llama", tmp_path, namer)
    nowhere = Fault(step=0, ubatch=0, index=10**6, kind="scale", draw=0)
    with Runner().open("llama.cpp", path, EXACT) as session:
        outcome = capture(session, lambda _: None, [Batch.of([1])], nowhere)
    assert isinstance(outcome, Answered)
    assert outcome.value.honest is None


def test_run_writes_a_report_of_every_op(tmp_path: Path) -> None:
    plan = ShadowPlan(
        case="synth:mamba", model=None, variant="mamba", settings=EXACT, work=Work(tokens=4)
    )
    result = run_shadow([plan], tmp_path, ["lockstep", "shadow"], None, Listener())
    assert result.code == 0
    rows = read_report(result.folder / "report.jsonl")
    ops = {row["detail"]["op"] for row in rows[1:-1]}
    assert {"SSM_SCAN", "SSM_CONV", "MUL_MAT"} <= ops
    assert all(row["detail"]["nodes"] == row["detail"]["compared"] for row in rows[1:-1])


def test_nodes_are_compared_in_all_their_fields() -> None:
    place = FaultPlace(step=0, ubatch=0, index=1, op="ADD", name="x", layer=None)
    assert place != FaultPlace(step=0, ubatch=0, index=2, op="ADD", name="x", layer=None)
