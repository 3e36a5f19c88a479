"""Programs of lists of likely tokens alone that list others with several threads."""

from pathlib import Path

import pytest

from lockstep.harness.records import Verdict
from tests.black_boxes import with_made_models
from tests.harness.blackbox.test_several_threads import FOLLOWED, HEAD, START, program
from tests.harness.blackbox.test_tokens_of_threads import WITH_THREADS
from tests.harness.check.test_check import plan_for
from tests.models import builtin

LISTS = """if question["ask"] == "logprobs":
        ids, values = [], []
        for prefix in question["prefixes"]:
            n = len(prefix)
            batch = {"tokens": prefix, "positions": [*range(n)], "sequences": [0] * n}
            batch["outputs"] = [0] * (n - 1) + [1]
            row = model.run([batch], lambda _, value: value)[0][-1]
            ids.append(np.argsort(-row, kind="stable")[: question["k"]].tolist())
            values.append(row[ids[-1]].tolist())
        return {"ids": ids, "logprobs": values}, {}
    shown = {}

    def show"""
LISTS_ALONE = {
    "shown = {}\n\n    def show": LISTS,
    '["logits", "trace", "replace"]': '["logprobs"]',
    ', "shows": SHOWS': "",
}


def listed(folder: Path, when: str = "False", then: str = "x = 1.2 * x") -> list[Verdict]:
    wrong = WITH_THREADS.replace("WHEN", when).replace("THEN", then)
    changes = {HEAD: f"with_threads({HEAD})", "class File:": wrong, START: FOLLOWED}
    plan = plan_for(
        builtin("f32", folder),
        engine=program(folder, changes | LISTS_ALONE),
        oracle="llama.cpp",
        suites=("logprobs",),
        n_tokens=8,
    )
    return with_made_models(plan)


@pytest.mark.parametrize("when", ["threads == 3", "calls == 30"])
def test_other_lists_with_several_threads_are_found_in_every_answer_or_in_one(
    when: str, tmp_path: Path
) -> None:
    """The likeliest token is the same in all of them."""
    *fine, wrong = listed(tmp_path, when)
    assert {verdict.status for verdict in fine} == {"agreed"}
    assert (wrong.status, wrong.detail["n_threads"]) == ("diverged", 3)
    assert wrong.summary.startswith("started with n_threads 3: after prefix ")


def test_who_dies_with_several_threads_is_said_to(tmp_path: Path) -> None:
    *fine, wrong = listed(tmp_path, "threads == 3", "sys.exit(7)")
    assert {verdict.status for verdict in fine} == {"agreed"}
    assert (wrong.status, wrong.key) == ("crashed", "logprobs/crashed/threads")


def test_who_lists_the_same_with_several_threads_agrees(tmp_path: Path) -> None:
    *_, last = listed(tmp_path)
    assert last.status == "agreed"
    assert last.summary.startswith("started with n_threads 3: ")
