"""Schedules on which llama.cpp is known to differ still show it; a short run finds no others."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.fuzzers._batch_judge import Judge
from harness.fuzzers._known_schedules import KnownSchedule, entry_for, known_schedules
from harness.fuzzers.base import FuzzPlan, run_campaign
from harness.records import EXACT
from harness.runner import Runner
from harness.synth.small import SMALL

KNOWN = known_schedules()
ROWS = [(known, kind) for known in KNOWN for kind in known.kinds]


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Judge]]:
    """llama.cpp and our engine on the small model of each kind."""
    folder, runner = tmp_path_factory.mktemp("small"), Runner()
    with ExitStack() as stack:
        made = {}
        for kind, write in SMALL.items():
            path = folder / f"{kind}.gguf"
            write(path)
            sessions = [runner.open(name, path, EXACT) for name in ("llama.cpp", "reference")]
            made[kind] = Judge(*(stack.enter_context(session) for session in sessions))
        yield made


@pytest.mark.parametrize(("known", "kind"), ROWS, ids=lambda value: getattr(value, "id", value))
def test_what_is_known_to_differ_still_does(
    known: KnownSchedule, kind: str, judges: dict[str, Judge]
) -> None:
    found = judges[kind](known.schedule)
    over = f"{known.component} no longer differs: take {known.id} out of known_divergences.toml"
    assert found is not None, over
    assert found.symptom == known.symptom, f"{known.id} now shows otherwise: {found}"
    assert entry_for(KNOWN, (known.component,), kind, found, known.schedule) == known


@pytest.mark.parametrize("kind", SMALL)
def test_a_short_run_finds_nothing_that_is_not_known(kind: str, tmp_path: Path) -> None:
    plan = FuzzPlan(targets=(kind,), cases=40, start=1, seed=5)
    result = run_campaign("batch", plan, tmp_path, [])
    assert result.code == 0, [v.summary for v in result.verdicts]
    (summary,) = [v for v in result.verdicts if v.status == "agreed"]
    counts = summary.detail
    assert counts["schedules"] >= 40
    assert min(counts["ubatches"], counts["neighbours"], counts["splitting"]) > 100
    assert counts.get("logits", 0) > 100 or kind != "attention"
