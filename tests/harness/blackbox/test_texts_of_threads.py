"""Programs of text alone that write another with several threads."""

from pathlib import Path

import pytest

from lockstep.harness.records import Verdict
from tests.black_boxes import with_made_models
from tests.harness.blackbox.test_several_threads import FOLLOWED, HEAD, START, program
from tests.harness.blackbox.test_tokens_of_threads import WITH_THREADS
from tests.harness.check.test_check import plan_for
from tests.models import builtin

TEXT = """if question["ask"] == "generate":
        ids = tokenizer.encode(base64.b64decode(question["prompt"]), add_special=True)
        ids, first = [int(token) for token in ids], len(ids)
        for n in range(first, first + question["n"]):
            batch = {"tokens": ids, "positions": [*range(n)], "sequences": [0] * n}
            batch["outputs"] = [0] * (n - 1) + [1]
            ids.append(int(model.run([batch], lambda _, value: value)[0][-1].argmax()))
        text = b"".join(tokenizer.piece(token, special=False) for token in ids[first:])
        return {"text": base64.b64encode(text).decode()}, {}
    shown = {}

    def show"""
TOKENIZER = """import base64
import json
from pathlib import Path

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
"""


def written(folder: Path, when: str = "False", then: str = "x = -x") -> list[Verdict]:
    model = builtin("f32", folder)
    made = f"tokenizer = tokenizer_of(GgufFile.open(Path({str(model)!r})).metadata)\n\n\n"
    wrong = made + WITH_THREADS.replace("WHEN", when).replace("THEN", then)
    changes = {
        HEAD: f"with_threads({HEAD})",
        "class File:": wrong,
        START: FOLLOWED,
        "import json\n": TOKENIZER,
        "shown = {}\n\n    def show": TEXT,
        '["logits", "trace", "replace"]': '["generate"]',
        ', "shows": SHOWS': "",
    }
    engine = program(folder, changes)
    plan = plan_for(model, engine=engine, oracle="llama.cpp", suites=("text",), n_tokens=8)
    return with_made_models(plan)


@pytest.mark.parametrize("when", ["threads == 3", "calls == 30"])
def test_another_text_with_several_threads_is_found_in_every_answer_or_in_one(
    when: str, tmp_path: Path
) -> None:
    *fine, wrong = written(tmp_path, when)
    assert {verdict.status for verdict in fine} <= {"agreed", "excused", "not-applicable"}
    assert (wrong.status, wrong.detail["n_threads"]) == ("diverged", 3)
    assert wrong.summary.startswith("started with n_threads 3: behind ")


def test_who_dies_with_several_threads_is_said_to(tmp_path: Path) -> None:
    *fine, wrong = written(tmp_path, "threads == 3", "sys.exit(7)")
    assert "crashed" not in {verdict.status for verdict in fine}
    assert (wrong.status, wrong.key) == ("crashed", "text/crashed/threads")


def test_who_writes_the_same_with_several_threads_agrees(tmp_path: Path) -> None:
    *_, last = written(tmp_path)
    assert last.status == "agreed"
    assert last.summary.startswith("started with n_threads 3: ")
