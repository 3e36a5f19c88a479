"""Engines added by `lockstep engine` agree except for known differences."""

import shutil
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.harness.acid.write import write_acid
from lockstep.harness.check.check import run_suites
from lockstep.harness.context.runner import Runner
from lockstep.harness.foreign.building import is_added
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.known.foreign import Finding, foreign_findings
from lockstep.harness.protocol.smoke import smoke
from lockstep.harness.records import EXACT, LORA, AdapterFile
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.selftest.foreign_findings import is_seen_in, verdicts_on_case
from lockstep.harness.synth.adapters import LoraRecipe, write_lora
from tests.plans import open_both, plan_of, verdicts_of

ASKED = [name for name, engine in ENGINES.items() if not engine.takes]
# compiles for each step, so its findings, which `lockstep finding` shows, take minutes
SLOW = ("tinygrad",)


def need(name: str) -> None:
    if not is_added(ENGINES[name]):
        pytest.skip(f"{name} is not added (lockstep engine add {name}): it was not asked")
    if name == "tinygrad" and not (shutil.which("clang") or find_library("LLVM")):
        pytest.skip("tinygrad needs clang, which is not installed: it was not asked")


@pytest.mark.parametrize("name", ASKED)
def test_every_offered_answer_is_well_formed(name: str, tmp_path: Path) -> None:
    need(name)
    model = builtin_model("f32", tmp_path)
    with Runner(time_limit=300.0, memory_limit=8 << 30).open(name, model, EXACT) as session:
        steps = list(smoke(session))
    wrong = {step.level for step in steps if step.status == "wrong"}
    assert wrong == ({"tokenize"} if name == "ctransformers" else set())  # a known crash
    assert [step.level for step in steps if step.status == "works"][1:]


@pytest.mark.parametrize("name", [name for name in ASKED if name not in SLOW])
def test_engine_agrees_on_a_seeded_model_except_for_known_findings(
    name: str, tmp_path: Path
) -> None:
    need(name)
    model = builtin_model("f32", tmp_path)
    verdicts = verdicts_of(plan_of(model, name, n_tokens=8, n_steps=4))
    assert [v.summary for v in verdicts if v.status == "diverged"] == []
    crashed = [v for v in verdicts if v.status in ("crashed", "malformed", "timed-out")]
    assert all(v.detail.get("known") for v in crashed)


@pytest.mark.parametrize(
    ("name", "suite", "status"),
    [
        ("transformers", "logits", "agreed"),
        ("xllamacpp", "decode", "agreed"),
        ("mistralrs", "text", "not-compared"),  # it adds no LoRA to a model with permuted rows
    ],
)
def test_engine_with_lora_agrees_or_says_why_not(
    name: str, suite: str, status: str, tmp_path: Path
) -> None:
    need(name)
    model = builtin_model("f32", tmp_path)
    files = [tmp_path / f"{i}.gguf" for i in range(1 if name == "mistralrs" else 2)]
    for i, file in enumerate(files):
        write_lora(LoraRecipe(seed=i, rank=2 + i), model, file)
    adapters = tuple(
        AdapterFile(kind=LORA, path=str(file), scale=scale)
        for file, scale in zip(files, (-0.6, 0.8), strict=False)
    )
    with open_both(plan_of(model, name, settings=replace(EXACT, adapters=adapters))) as both:
        if LORA not in (both.context.subject_info.levels or ()):
            pytest.skip(f"{name} was added without what LoRA needs: LoRA was not tested")
        verdicts = list(run_suites(both.context, (suite,)))
    assert {v.status for v in verdicts} == {status}


@pytest.mark.parametrize("name", [name for name in ASKED if name not in SLOW])
def test_acid_model_says_ok_except_for_known_findings(name: str, tmp_path: Path) -> None:
    need(name)
    model = tmp_path / "acid.gguf"
    write_acid(model)
    with open_both(plan_of(model, name)) as both:
        verdicts = list(run_suites(both.context, ("acid",)))
        levels = {*(both.context.subject_info.levels or ())}
    if not levels & {"generate", "greedy", "logits", "logprobs"}:
        assert [v.status for v in verdicts] == ["not-compared"]
        return
    assert {v.status for v in verdicts} <= {"agreed", "excused"}
    assert len([v for v in verdicts if v.status == "agreed"]) > 30


@pytest.mark.parametrize("finding", foreign_findings(), ids=lambda finding: finding.id)
def test_finding_is_still_true(finding: Finding) -> None:
    need(finding.engine)
    if finding.engine in SLOW and finding.suites != ("metadata",):
        pytest.skip(f"it takes minutes: lockstep finding {finding.id} --run was not tried")
    verdicts = verdicts_on_case(finding, lambda _: None)
    assert any(is_seen_in(finding, verdict) for verdict in verdicts)
    assert [v.summary for v in verdicts if v.status == "diverged"] == []
