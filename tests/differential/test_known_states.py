"""llama.cpp still wrongly accepts, or crashes on, the state files that are known for this; a short
run finds no others."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.fuzzers.states.damage import state_case_from
from lockstep.harness.fuzzers.states.findings import KnownState, entry_for, known_states
from lockstep.harness.fuzzers.states.fuzzer import StateCampaign
from lockstep.harness.fuzzers.states.saved import MEMORIES, WAYS
from lockstep.harness.records import DEFAULT, EXACT, Settings
from lockstep.harness.synth.small import SMALL
from tests.plans import plan_of, verdicts_of

KNOWN = known_states()
SYMPTOMS = {"crashes", "hangs", "accepts", "keeps-cells", "stuck", "changes"}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_known_state_file_still_shows_its_fault(known: KnownState) -> None:
    way, memory = known.ways[0], known.memories[0]
    with ExitStack() as stack:
        campaign = StateCampaign(FuzzPlan(), f"{way}-{memory}", stack, lambda target, text: None)
        found = campaign.judge([state_case_from(known.case.encode())])
    over = f"llama.cpp no longer does so: take {known.id} out of harness/known"
    assert found, over
    assert entry_for(KNOWN, found[0][1], way, memory) == known, over


def test_entries_state_their_subject() -> None:
    assert len({known.id for known in KNOWN}) == len(KNOWN)
    for known in KNOWN:
        assert known.symptom in SYMPTOMS
        assert set(known.ways) <= set(WAYS)
        assert set(known.memories) <= set(MEMORIES)
        assert known.status.startswith(("reported", "not reported"))
        assert known.sentence.endswith(".")


@pytest.mark.parametrize("target", ["context-window", "sequence-hybrid"])
def test_short_run_finds_only_known_differences(target: str, tmp_path: Path) -> None:
    plan = FuzzPlan(targets=(target,), cases=256, start=256, seed=4)
    result = run_campaign("states", plan, tmp_path, [])
    assert result.code == 0, [v.summary for v in result.verdicts if v.status != "excused"]
    (summary,) = [v for v in result.verdicts if v.status == "agreed"]
    counts = summary.detail
    assert counts["files"] == 256
    assert counts["refused by ours"] >= counts["refused by llama.cpp"] > 100


@pytest.mark.parametrize("settings", [EXACT, DEFAULT], ids=lambda settings: settings.name)
@pytest.mark.parametrize("memory", MEMORIES)
def test_llama_cpp_continues_from_its_own_files(
    memory: str, settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    SMALL[memory](path)
    asked = {"suites": ("states",), "by_name": True, "n_tokens": 12, "settings": settings}
    found = verdicts_of(plan_of(path, "reference", **asked))
    assert [verdict.status for verdict in found] == ["agreed"] * 8
    assert [verdict.about for verdict in found] == ["llama.cpp"] * 4 + ["both"] * 4
    # cells of windows, and cells after another sequence, are in other places after loading
    bits = [verdict.detail["bits"] for verdict in found if verdict.detail["sequence"] != 1]
    assert all(bits) or memory == "window"
