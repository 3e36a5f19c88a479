"""Faults in llama.cpp's own graphs that harness/known/divergences.toml lists: each still occurs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import meaning_of
from lockstep.harness.check.check import BadInput, Plan, lanes_of, preflight
from lockstep.harness.context.runner import Runner
from lockstep.harness.known import entries
from lockstep.harness.records import PRESETS, Answered, Crashed
from lockstep.harness.runs.run import Listener
from lockstep.harness.runs.shadow import ShadowPlan, run_shadow
from lockstep.harness.shadow.batches import Work, batches_of
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.shadow.known import known_crash
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.shadow.nodes import capture
from lockstep.harness.synth.any_arch import variant_named, variants
from tests.recorded import variant_of

KNOWN = entries("shadow")


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: str(known["id"]))
def test_known_fault_of_llama_cpp_persists(known: dict[str, Any], tmp_path: Path) -> None:
    over = f"llama.cpp is right by now: take {known['id']} out of harness/known"
    changes = {"changed": tuple(known["keys"].items()), "complete": known["complete"]}
    variant = replace(variant_named(known["variant"]), **changes)
    path = tmp_path / "m.gguf"
    with open_for_variants() as namer:
        make_variant(variant, path, quant=known.get("quant", "F32"), session=namer)
    settings = PRESETS[known["settings"]]
    if "cache" in known:
        settings = replace(settings, type_k=known["cache"], type_v=known["cache"])
    plan = ShadowPlan(
        case=known["id"], model=path, settings=settings, work=Work(tokens=known.get("tokens", 4))
    )
    with GgufFile.open(path) as file, Runner().open("llama.cpp", path, settings) as session:
        info = session.ask("describe")
        assert isinstance(info, Answered)
        lanes = lanes_of(info.value.build)
        if lanes < known["lanes"]:
            pytest.skip(f"{known['id']} needs {known['lanes']} lanes; not compared with {lanes}")
        if (needs := known.get("needs")) and needs not in info.value.generic:
            pytest.skip(f"{known['id']} needs a build with {needs}: not compared")
        build = Build(lanes=lanes, n_threads=settings.n_threads, generic=info.value.generic)
        judge = ShadowJudge(file, build)
        outcome = capture(session, judge, batches_of(plan.work, plan.seed, file))
    if known["symptom"] == "crash":
        assert isinstance(outcome, Crashed), over
        return
    assert isinstance(outcome, Answered)
    assert {finding.op for finding in judge.findings} == {known["op"]}, over


def test_a_known_crash_is_named_and_stays_a_crash(tmp_path: Path) -> None:
    default = PRESETS["default"]
    plan = ShadowPlan(case="synth:plm", model=None, variant="plm", settings=default)
    result = run_shadow([plan], tmp_path, ["lockstep", "shadow"], None, Listener())
    (verdict,) = result.verdicts
    assert (verdict.status, result.code) == ("crashed", 3)
    assert "(known: plm-flash-attention: " in verdict.summary
    assert known_crash("plm", "exact") == known_crash("rwkv6qwen2", "exact") == ""


def test_known_crash_is_not_named_for_another_type_or_build() -> None:
    assert known_crash("deepseek2", "default", "F16", ("AMX",)).startswith("amx-views: ")
    assert known_crash("kimi-k3", "default", "F16", ("AMX",)).startswith("amx-views: ")
    assert known_crash("deepseek2", "default", "F16") == ""
    assert known_crash("deepseek2", "default", "F32", ("AMX",)) == ""
    assert known_crash("plm", "default", "Q8_0").startswith("plm-flash-attention: ")


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: str(known["id"]))
def test_entry_states_its_subject_place_and_report(known: dict[str, Any]) -> None:
    assert known["component"] == "llama.cpp"
    assert {known["variant"], *known.get("also", ())} <= set(variants())
    assert known["symptom"] in ("value", "crash")
    assert known["symptom"] == "crash" or meaning_of(known["op"])
    assert known["sentence"].endswith(".")
    assert known["status"].startswith(("reported", "not reported: "))
    assert known["link"].startswith("https://github.com/") or "not reported" in known["status"]


def test_entries_have_unique_ids() -> None:
    assert len({known["id"] for known in KNOWN}) == len(KNOWN) >= 3


def test_a_prompt_beyond_the_table_of_positions_is_refused_by_name(tmp_path: Path) -> None:
    """llama.cpp would abort (known as positions-beyond-the-table)."""
    path = tmp_path / "starcoder.gguf"
    variant_of("starcoder", path)
    exact = PRESETS["exact"]
    plan = ShadowPlan(case="starcoder", model=path, settings=exact, work=Work(tokens=364))
    result = run_shadow([plan], tmp_path, ["lockstep", "shadow"], None, Listener())
    (verdict,) = result.verdicts
    assert (verdict.status, result.code) == ("not-compared", 3)
    assert "320 positions" in verdict.summary
    check = Plan(case="starcoder", model=path, subject_model=path, settings=exact, n_tokens=319)
    with pytest.raises(BadInput, match="take --tokens 318 or fewer"):
        preflight(check)
    preflight(replace(check, n_tokens=318))
