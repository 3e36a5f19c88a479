"""`bench shadow`: its rows and its promise. No test judges times."""

import os
from pathlib import Path

import pytest

from lockstep.harness.bench.base import BenchPlan, BenchRow, bench_named
from lockstep.harness.bench.shadow import (
    CALLBACK,
    CAPTURE,
    COPY,
    PLAIN,
    WAITING,
    ShadowBench,
    threads_spin,
)
from lockstep.harness.check.check import BadInput


def test_a_prompt_and_single_tokens_are_measured_under_both_presets() -> None:
    pytest.importorskip("llama_cpp", reason="no llama_cpp: nothing was measured")
    rows = list(bench_named("shadow").run(BenchPlan(rounds=1), lambda target, text: None))
    assert [row.target for row in rows] == [
        f"f32, {preset}, {work}"
        for preset in ("exact", "default")
        for work in ("prompt of 64", "16 single tokens")
    ]
    for row in rows:
        assert {what for what, _ in row.rates} == {CAPTURE, PLAIN, CALLBACK, COPY}
        assert all(rate > 0 for rate in row.rates.values())


@pytest.mark.parametrize(("captured", "kept"), [(0.349, True), (0.351, False)])
def test_capture_is_promised_within_three_decodes_and_a_copy(captured: float, kept: bool) -> None:
    seconds = {CAPTURE: captured, PLAIN: 0.1, CALLBACK: 0.2, COPY: 0.05}
    row = BenchRow(target="m", rates={(what, 1): 1 / value for what, value in seconds.items()})
    (promise,) = ShadowBench().promises([row])
    assert (promise.found >= promise.least) is kept


@pytest.mark.parametrize("before", [None, "passive"])
def test_users_setting_for_spinning_threads_is_kept(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WAITING, raising=False)
    if before is not None:
        monkeypatch.setenv(WAITING, before)
    with threads_spin():
        assert os.environ[WAITING] == (before or "active")
    assert os.environ.get(WAITING) == before


def test_unknown_target_is_refused(tmp_path: Path) -> None:
    plan = BenchPlan(targets=(str(tmp_path / "none.gguf"),), rounds=1)
    with pytest.raises(BadInput, match="no such file, and no built-in model"):
        list(bench_named("shadow").run(plan, lambda target, text: None))
