"""Programs of greedy tokens alone that choose others with several threads."""

from pathlib import Path

import pytest

from lockstep.harness.records import Verdict
from tests.black_boxes import with_made_models
from tests.harness.blackbox.test_several_threads import FOLLOWED, HEAD, START, program
from tests.harness.check.test_check import plan_for
from tests.models import builtin

GREEDY = """if question["ask"] == "greedy":
        ids = list(question["prompt"])
        for n in range(len(ids), len(ids) + question["n"]):
            batch = {"tokens": ids, "positions": [*range(n)], "sequences": [0] * n}
            batch["outputs"] = [0] * (n - 1) + [1]
            ids.append(int(model.run([batch], lambda _, value: value)[0][-1].argmax()))
        return {"ids": ids[len(question["prompt"]) :]}, {}
    shown = {}

    def show"""
TOKENS_ALONE = {
    "shown = {}\n\n    def show": GREEDY,
    '["logits", "trace", "replace"]': '["greedy"]',
    ', "shows": SHOWS': "",
}
WITH_THREADS = """threads = calls = 0


def with_threads(x):
    global calls
    calls += threads == 3
    if WHEN:
        THEN
    return x


class File:"""


def decoded(
    folder: Path, when: str = "False", then: str = "x = -x", start: str = FOLLOWED
) -> list[Verdict]:
    wrong = WITH_THREADS.replace("WHEN", when).replace("THEN", then)
    changes = {HEAD: f"with_threads({HEAD})", "class File:": wrong, START: start}
    plan = plan_for(
        builtin("f32", folder),
        engine=program(folder, changes | TOKENS_ALONE),
        oracle="llama.cpp",
        suites=("decode",),
        n_tokens=8,
        n_steps=8,
    )
    return with_made_models(plan)


@pytest.mark.parametrize("when", ["threads == 3", "calls == 30"])
def test_other_tokens_with_several_threads_are_found_in_every_answer_or_in_one(
    when: str, tmp_path: Path
) -> None:
    *fine, wrong = decoded(tmp_path, when)
    assert "diverged" not in {verdict.status for verdict in fine}
    assert (wrong.status, wrong.detail["n_threads"]) == ("diverged", 3)
    assert wrong.summary.startswith("started with n_threads 3: greedy token ")


def test_who_dies_with_several_threads_is_said_to(tmp_path: Path) -> None:
    *fine, wrong = decoded(tmp_path, "threads == 3", "sys.exit(7)")
    assert "crashed" not in {verdict.status for verdict in fine}
    assert (wrong.status, wrong.key) == ("crashed", "decode/crashed/threads")


def test_of_who_does_not_start_with_several_threads_that_is_said(tmp_path: Path) -> None:
    dies = FOLLOWED.replace("        can", "        assert threads != 3\n        can")
    *fine, last = decoded(tmp_path, start=dies)
    assert "agreed" in {verdict.status for verdict in fine}
    assert last.status == "not-applicable"
    assert last.summary.startswith("started with n_threads 3: it does not start: ")


def test_who_chooses_the_same_with_several_threads_agrees(tmp_path: Path) -> None:
    *_, last = decoded(tmp_path)
    assert last.status == "agreed"
    assert last.summary.startswith("started with n_threads 3: 8 greedy tokens are the same")
