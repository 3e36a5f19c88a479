"""Programs that show only greedy tokens, lists or text, and answer differently with several
threads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.harness.records import Verdict
from tests.black_boxes import with_made_models
from tests.harness.blackbox.test_several_threads import FOLLOWED, HEAD, START, program
from tests.harness.check.test_check import plan_for
from tests.models import builtin

LAST_ROW = """
            batch = {"tokens": ids, "positions": [*range(n)], "sequences": [0] * n}
            batch["outputs"] = [0] * (n - 1) + [1]
            row = model.run([batch], lambda _, value: value)[0][-1]"""
GREEDY = f"""if question["ask"] == "greedy":
        ids = list(question["prompt"])
        for n in range(len(ids), len(ids) + question["n"]):{LAST_ROW}
            ids.append(int(row.argmax()))
        return {{"ids": ids[len(question["prompt"]) :]}}, {{}}"""
LISTS = f"""if question["ask"] == "logprobs":
        found, values = [], []
        for ids in question["prefixes"]:
            n = len(ids){LAST_ROW}
            found.append(np.argsort(-row, kind="stable")[: question["k"]].tolist())
            values.append(row[found[-1]].tolist())
        return {{"ids": found, "logprobs": values}}, {{}}"""
TEXT = f"""if question["ask"] == "generate":
        ids = tokenizer.encode(base64.b64decode(question["prompt"]), add_special=True)
        ids, first = [int(token) for token in ids], len(ids)
        for n in range(first, first + question["n"]):{LAST_ROW}
            ids.append(int(row.argmax()))
        text = b"".join(tokenizer.piece(token, special=False) for token in ids[first:])
        return {{"text": base64.b64encode(text).decode()}}, {{}}"""
TOKENIZER = """import base64
import json
from pathlib import Path

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
"""
WITH_THREADS = """threads = calls = 0


def with_threads(x):
    global calls
    calls += threads == 3
    if WHEN:
        THEN
    return x


class File:"""
# by suite: the level, its answer, the wrong answer, and the beginning of a verdict on it
ANSWERS = {
    "decode": ("greedy", GREEDY, "x = -x", "greedy token "),
    # the most likely token stays the same
    "logprobs": ("logprobs", LISTS, "x = 1.2 * x", "after prefix "),
    "text": ("generate", TEXT, "x = -x", "after "),
}
Asked = Callable[..., list[Verdict]]


@pytest.fixture(params=ANSWERS)
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def asked(suite: str, tmp_path: Path) -> Asked:
    """Return all verdicts on a program that starts normally, and answers wrongly if the condition
    WHEN holds."""
    model = builtin("f32", tmp_path)
    level, answer, wrong, _ = ANSWERS[suite]

    def ask(when: str = "False", then: str = wrong, start: str = FOLLOWED) -> list[Verdict]:
        made = WITH_THREADS.replace("WHEN", when).replace("THEN", then)
        changes = {
            HEAD: f"with_threads({HEAD})",
            START: start,
            "shown = {}\n\n    def show": f"{answer}\n    shown = {{}}\n\n    def show",
            '["logits", "trace", "replace"]': f'["{level}"]',
            ', "shows": SHOWS': "",
        }
        if suite == "text":
            opened = f"tokenizer = tokenizer_of(GgufFile.open(Path({str(model)!r})).metadata)\n\n\n"
            made, changes["import json\n"] = opened + made, TOKENIZER
        engine = program(tmp_path, {**changes, "class File:": made})
        more = {"n_steps": 8} if suite == "decode" else {}
        plan = plan_for(
            model, engine=engine, oracle="llama.cpp", suites=(suite,), n_tokens=8, **more
        )
        return with_made_models(plan)

    return ask


@pytest.mark.parametrize("when", ["threads == 3", "calls == 30"])
def test_wrong_answers_with_three_threads_are_found_in_all_or_one(
    when: str, suite: str, asked: Asked
) -> None:
    *fine, wrong = asked(when)
    assert {verdict.status for verdict in fine} <= {"agreed", "excused", "not-applicable"}
    assert (wrong.status, wrong.detail["n_threads"]) == ("diverged", 3)
    assert wrong.summary.startswith(f"started with n_threads 3: {ANSWERS[suite][-1]}")


def test_engine_that_dies_with_several_threads_is_named(suite: str, asked: Asked) -> None:
    *fine, wrong = asked("threads == 3", "sys.exit(7)")
    assert "crashed" not in {verdict.status for verdict in fine}
    assert (wrong.status, wrong.key) == ("crashed", f"{suite}/crashed/threads")


@pytest.mark.parametrize("suite", ["decode"])
def test_engine_that_does_not_start_with_several_threads_is_named(asked: Asked) -> None:
    dies = FOLLOWED.replace("        can", "        assert threads != 3\n        can")
    *fine, last = asked(start=dies)
    assert "agreed" in {verdict.status for verdict in fine}
    assert last.status == "not-applicable"
    assert last.summary.startswith("started with n_threads 3: the engine does not start: ")


def test_same_answers_with_several_threads_agree(suite: str, asked: Asked) -> None:
    *_, last = asked()
    assert last.status == "agreed"
    more = "8 greedy tokens are the same" if suite == "decode" else ""
    assert last.summary.startswith(f"started with n_threads 3: {more}")
