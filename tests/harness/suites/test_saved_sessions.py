"""Sessions that continue wrongly are found. Honest file formats and an engine's own noise are not
accused."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidModel
from lockstep.harness.adapters.parts.reference_state import read_tree
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.mutants import sessions
from lockstep.harness.mutants.parts.wrong_sessions import WRONG_SESSIONS
from lockstep.harness.records import DEFAULT, Verdict
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.synth.small import SMALL
from tests.plans import plan_of, verdicts_of

MEMORIES = ("attention", "window", "recurrent", "hybrid")
PROGRAM = Path(__file__).parents[2] / "session_engine.py"
ROWS = ("tokens", "positions", "seq_ids", "outputs")


class Compressed(Reference, name="test:session-compressed"):
    """The reference engine with a file format of its own."""

    def save(self, batches: Any, then: Any, path: str, sequence: int | None = None) -> Any:
        found = super().save(batches, then, path, sequence)
        with np.load(path) as held:
            arrays = dict(held)
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)
        return found


class Recomputed(Reference, name="test:session-recomputed"):
    """The reference engine, which here saves only the tokens and computes their state again."""

    def save(
        self,
        batches: Sequence[Batch],
        then: Sequence[Batch],
        path: str,
        sequence: int | None = None,
    ) -> Any:
        rows = [[getattr(batch, name).tolist() for name in ROWS] for batch in batches]
        Path(path).write_text(json.dumps(rows))
        return self.run((*batches, *then))[len(batches) :]

    def load(self, path: str, then: Sequence[Batch], sequence: int | None = None) -> Any:
        kinds = (np.int32, np.int32, np.int32, np.bool_)
        rows = json.loads(Path(path).read_text())
        batches = [Batch(*map(np.array, row, kinds)) for row in rows]
        return self.run((*batches, *then))[len(batches) :]

    def run(self, batches: Sequence[Batch]) -> Any:
        memory = self.loaded.new_memory()
        return tuple(self.loaded.decode(batch, memory) for batch in batches)


class Disturbed(Reference, name="test:session-disturbed"):
    """The reference engine. Its session is wrong after saving, and its file is right."""

    def save(self, *args: Any, **kwargs: Any) -> Any:
        return tuple(rows[:, ::-1] for rows in super().save(*args, **kwargs))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("small")
    for memory in MEMORIES:
        SMALL[memory](folder / f"{memory}.gguf")
    return lambda memory: folder / f"{memory}.gguf"


def judged(path: Path, engine: str, **changes: Any) -> list[Verdict]:
    usual: dict[str, Any] = {"oracle": "reference", "suites": ("states",), "by_name": True}
    return verdicts_of(plan_of(path, engine, **{**usual, "n_tokens": 12, **changes}))


@pytest.mark.parametrize("name", WRONG_SESSIONS)
def test_wrong_session_is_found(name: str, model: Callable[[str], Path]) -> None:
    *before, last = judged(model(WRONG_SESSIONS[name].memory), name)
    assert last.status == "diverged"
    assert {verdict.status for verdict in before} <= {"agreed"}


def test_wrong_sessions_are_many_and_each_has_its_mistake() -> None:
    assert len({each.mistake for each in WRONG_SESSIONS.values()}) == len(WRONG_SESSIONS) >= 6
    assert {each.memory for each in WRONG_SESSIONS.values()} == set(MEMORIES)
    assert {each.__module__ for each in WRONG_SESSIONS.values()} == {sessions.__name__}


@pytest.mark.parametrize("memory", MEMORIES)
def test_reference_continues_with_the_same_bits(memory: str, model: Callable[[str], Path]) -> None:
    found = judged(model(memory), "reference")
    assert [verdict.status for verdict in found] == ["agreed"] * 4
    assert all(verdict.detail["bits"] for verdict in found)


@pytest.mark.parametrize("engine", [Compressed.name, Recomputed.name])
def test_honest_format_is_not_accused(engine: str, model: Callable[[str], Path]) -> None:
    assert {verdict.status for verdict in judged(model("attention"), engine)} == {"agreed"}


def test_session_file_in_f16_is_right_for_an_f16_cache(model: Callable[[str], Path]) -> None:
    found = judged(model("attention"), "mutant:session-rounded-to-f16", settings=DEFAULT)
    assert {verdict.status for verdict in found} == {"agreed"}


def program(mode: str) -> str:
    return f"{sys.executable} {PROGRAM} {mode}"


@pytest.mark.parametrize(("mode", "ending"), [("right", "agreed"), ("memory", "diverged")])
def test_program_is_asked_to_load_in_a_new_process(mode: str, ending: str, tmp_path: Path) -> None:
    found = judged(builtin_model("f32", tmp_path), program(mode), by_name=False, suites=("states",))
    assert found[-1].status == ending


def test_noisy_engine_is_tested_against_its_own_noise(tmp_path: Path) -> None:
    found = judged(builtin_model("f32", tmp_path), program("jitter"))
    assert {verdict.status for verdict in found} == {"agreed"}
    assert not any(verdict.detail["bits"] for verdict in found)


@pytest.mark.parametrize("mode", ["noise", "nan", "zero", "reversed"])
def test_session_is_compared_with_the_oracle(mode: str, tmp_path: Path) -> None:
    [verdict] = judged(builtin_model("f32", tmp_path), program(mode))
    assert (verdict.status, verdict.detail["at_fault"]) == ("diverged", "subject")


def test_save_is_blamed_before_the_file(model: Callable[[str], Path]) -> None:
    [verdict] = judged(model("attention"), Disturbed.name)
    assert (verdict.status, verdict.detail["step"]) == ("diverged", "saving")


def test_engine_without_sessions_is_not_compared(tmp_path: Path) -> None:
    example = f"{sys.executable} {PROGRAM.parents[1]}/src/lockstep/harness/examples/engine.py"
    path = builtin_model("f32", tmp_path)
    assert [verdict.status for verdict in judged(path, example)] == ["not-compared"]
    assert judged(path, example, by_name=False) == []


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InvalidModel):
        read_tree(path)
